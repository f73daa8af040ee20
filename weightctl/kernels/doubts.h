/* The blocks of codes that need a closer look: a filter for weightctl/verify/proof/codes.py.

   It finds each block that the judgement there calls wrong or unusual, and a few others. Its limits
   are those of the judgement, without the allowances for rounding that are rarely needed. */
#ifndef WEIGHTCTL_DOUBTS_H
#define WEIGHTCTL_DOUBTS_H

#include "measure.h"
#include "rounding.h"

/* The values that are judged at a time, and room for their blocks. */
#define JUDGED 1024
#define JUDGED_BYTES (2 * JUDGED)
/* The judgement adds in another order, so blocks that are close to its limits are doubtful, too. */
#define CLOSE 0.999F
/* The relative rounding of float16, and half of its least step. */
#define HALF_ROUNDING 0x1p-11F
#define LEAST_HALF 0x1p-25F

/* What is known of the values of a group, which have one scale. */
struct group {
    float squares; /* of the distances of the codes' values from the source's */
    float least, most, magnitude;
    int is_far; /* a code is not the nearest one */
};

/* Decode blocks after replacing each byte that has codes: by that of a table, or by `byte`. */
static void decode_replaced(const struct codec *codec, const struct code_layout *layout,
                            const uint8_t *blocks, size_t count, const uint8_t *table,
                            uint8_t byte, float *out)
{
    uint8_t replaced[JUDGED_BYTES];
    for (size_t block = 0; block < count; block++)
        for (size_t i = 0; i < codec->size; i++) {
            size_t at = block * codec->size + i;
            uint8_t other = table == NULL ? byte : table[blocks[at]];
            replaced[at] = layout->mask[i] ? other : blocks[at];
        }
    codec->decode(replaced, count, out);
}

INLINE float lowest_lane(f32v v)
{
    float least = v[0];
    for (int i = 1; i < LANES; i++)
        least = v[i] < least ? v[i] : least;
    return least;
}

INLINE float highest_lane(f32v v)
{
    float most = v[0];
    for (int i = 1; i < LANES; i++)
        most = v[i] > most ? v[i] : most;
    return most;
}

/* Measure a group of evenly spaced levels. A value beyond the ends has the code of an end. */
INLINE struct group measure_even(const float *x, const float *y, size_t size, float low, float high,
                                 float step, float rounded)
{
    f32v least = f32v_load(x), most = least, squares = {0};
    i32v far = {0};
    f32v width = f32v_abs(f32v_all(step)), half = width * 0.5f;
    for (size_t i = 0; i < size; i += LANES) {
        f32v value = f32v_load(x + i), stored = f32v_load(y + i), distance = value - stored;
        f32v toward = distance * step, limit = half + rounded * (f32v_abs(stored) + width);
        i32v is_at_end = ((toward < 0) & (stored == low)) | ((toward > 0) & (stored == high));
        far |= ~(f32v_abs(distance) <= limit) & ~is_at_end;
        squares += distance * distance;
        least = f32v_min(value, least);
        most = f32v_max(value, most);
    }
    float a = lowest_lane(least), b = highest_lane(most);
    return (struct group){f32v_sum(squares), a, b, -a > b ? -a : b, i32v_any(far)};
}

/* The same for uneven levels, whose neighbors are given. */
INLINE struct group measure_uneven(const float *x, const float *y, size_t size, const float *down,
                                   const float *up, float step, float rounded)
{
    f32v least = f32v_load(x), most = least, squares = {0};
    i32v far = {0};
    float sign = step < 0 ? -1 : 1;
    for (size_t i = 0; i < size; i += LANES) {
        f32v value = f32v_load(x + i), stored = f32v_load(y + i), distance = value - stored;
        f32v lower = f32v_load(down + i), higher = f32v_load(up + i);
        f32v twice = value * 2 - stored, allowed = f32v_abs(stored);
        i32v is_below = ~((lower - twice) * sign <= rounded * (allowed + f32v_abs(lower)));
        i32v is_above = ~((twice - higher) * sign <= rounded * (allowed + f32v_abs(higher)));
        far |= (is_below & (stored != lower)) | (is_above & (stored != higher));
        squares += distance * distance;
        least = f32v_min(value, least);
        most = f32v_max(value, most);
    }
    float a = lowest_lane(least), b = highest_lane(most);
    return (struct group){f32v_sum(squares), a, b, -a > b ? -a : b, i32v_any(far)};
}

/* The sum of squares that is left with the best scale, and min, for the codes of a group. */
static double least_squares(const float *x, const float *y, size_t size, int has_min)
{
    double value = 0, stored = 0, values = 0, product = 0, squares = 0;
    for (size_t i = 0; has_min && i < size; i++) {
        value += (double)x[i] / (double)size;
        stored += (double)y[i] / (double)size;
    }
    for (size_t i = 0; i < size; i++) {
        values += (x[i] - value) * (x[i] - value);
        product += (x[i] - value) * (y[i] - stored);
        squares += (y[i] - stored) * (y[i] - stored);
    }
    return values - (squares > 0 ? product * product / squares : 0);
}

static int is_unusual_group(const struct code_layout *layout, const struct group *found, float step,
                            float scale, const float *x, const float *y)
{
    size_t size = layout->shared;
    float levels = layout->limits.codes * layout->limits.spacing;
    float rounding = (scale * layout->limits.shares_scale + LEAST_HALF) * layout->limits.spacing;
    float offset = found->magnitude * HALF_ROUNDING + levels * LEAST_HALF;
    float mean = found->squares / (float)size, width = fabsf(step) * layout->limits.spacing;
    float full = layout->has_min ? (found->most - (found->least < 0 ? found->least : 0)) / (layout->limits.codes - 1)
                                 : found->magnitude / (layout->limits.codes / 2);
    float most = full + rounding + offset, usual = width + rounding;
    if (!(mean <= CLOSE * layout->limits.most_error * most * most) ||
        !(width <= CLOSE * (full * layout->limits.largest + rounding)) ||
        !(CLOSE * width >= full * layout->limits.smallest - rounding))
        return 1;
    return !(mean <= CLOSE * (usual * usual * layout->limits.least_error + offset * offset)) &&
           !(found->squares <= CLOSE * layout->limits.most_times * least_squares(x, y, size, layout->has_min));
}

/* Whether one multiple of the scale surely gives all codes of a group. */
static int fits_some_scale(const struct code_layout *layout, const float *x, const float *y, float step)
{
    float least = 1 / layout->limits.most_fitted, most = HUGE_VALF, half = layout->limits.codes / 2;
    for (size_t i = 0; i < layout->shared; i++) {
        float wanted = x[i] / step, code = rintf(y[i] / step);
        float below = code > -half ? code - 0.5f : -HUGE_VALF;
        float above = code < half - 1 ? code + 0.5f : HUGE_VALF;
        if (!(fabsf(wanted) > 0))
            return 0;
        float low = (wanted > 0 ? below : above) / wanted, high = (wanted > 0 ? above : below) / wanted;
        least = low > least ? low : least;
        most = high < most ? high : most;
    }
    return least <= most;
}

/* Whether one scale and one min surely give all codes of a group: see `_fits_some_range`. */
static int fits_some_range(const struct code_layout *layout, const float *x, const float *y,
                           float low, float step)
{
    float upper[JUDGED], lower[JUDGED];
    size_t size = layout->shared;
    for (size_t i = 0; i < size; i++) {
        float code = rintf((y[i] - low) / step);
        upper[i] = code < layout->limits.range ? code + 0.5f : HUGE_VALF;
        lower[i] = code > 0 ? code - 0.5f : -HUGE_VALF;
    }
    f32v least = f32v_all(0), most = f32v_all(HUGE_VALF);
    for (size_t i = 0; i < size; i++)
        for (size_t j = 0; j < size; j += LANES) {
            f32v room = upper[i] - f32v_load(lower + j), apart = x[i] - f32v_load(x + j);
            f32v limit = room / apart;
            most = f32v_select((apart > 0) & ~(limit >= most), limit, most);
            least = f32v_select((apart < 0) & ~(limit <= least), limit, least);
            if (i32v_any((apart == 0) & ~(room >= 0)))
                return 0;
        }
    return highest_lane(least) <= lowest_lane(most);
}

static int fits_some(const struct code_layout *layout, const float *x, const float *y, float low,
                     float step)
{
    if (layout->fits_min)
        return fits_some_range(layout, x, y, low, step);
    return layout->fits_scale && fits_some_scale(layout, x, y, step);
}

static void find_doubtful(const struct codec *codec, const struct code_layout *layout,
                          const float *values, const uint8_t *blocks, size_t count, uint8_t *doubtful)
{
    float own[JUDGED], low[JUDGED], high[JUDGED], up[JUDGED];
    size_t tile = JUDGED / codec->block, some;
    for (size_t first = 0; first < count; first += some) {
        some = count - first < tile ? count - first : tile;
        const uint8_t *raw = blocks + first * codec->size;
        const float *all = values + first * codec->block;
        codec->decode(raw, some, own);
        decode_replaced(codec, layout, raw, some, NULL, layout->highest, high);
        decode_replaced(codec, layout, raw, some, layout->down, layout->lowest, low);
        if (layout->up != NULL)
            decode_replaced(codec, layout, raw, some, layout->up, 0, up);
        for (size_t block = 0; block < some; block++) {
            float scale = fabsf(half_load(raw + block * codec->size + layout->scale));
            float rounded = layout->limits.rounded;
            if (rounded > 0 && rounded < LEAST_HALF / scale)
                rounded = LEAST_HALF / scale;
            int found = !(scale > 0);
            for (size_t i = block * codec->block; !found && i < (block + 1) * codec->block;
                 i += layout->shared) {
                const float *x = all + i, *y = own + i;
                float step = (layout->up != NULL ? high[i] : high[i] - low[i]) / layout->limits.range;
                struct group group =
                    layout->up != NULL
                        ? measure_uneven(x, y, layout->shared, low + i, up + i, step, rounded)
                        : measure_even(x, y, layout->shared, low[i], high[i], step, rounded);
                found = is_unusual_group(layout, &group, step, scale, x, y) ||
                        (group.is_far && !fits_some(layout, x, y, low[i], step));
            }
            doubtful[first + block] = (uint8_t)found;
        }
    }
}

#undef CLOSE
#undef HALF_ROUNDING
#undef LEAST_HALF

#endif
