/* Grids, and the lists of near grid points. */
#include "grids.h"

#include <stdlib.h>
#include <string.h>

#define UNSET NULL, NULL, NULL
struct grid grid_iq1 = {8, 2, UNSET};
struct grid grid_iq2_xxs = {8, 2, UNSET};
struct grid grid_iq2_xs = {8, 2, UNSET};
struct grid grid_iq2_s = {8, 2, UNSET};
struct grid grid_iq3_xxs = {4, 3, UNSET};
struct grid grid_iq3_s = {4, 3, UNSET};

static const struct {
    const char *encoding;
    struct grid *grid;
} grids[] = {
    {"IQ1_S", &grid_iq1},         {"IQ1_M", &grid_iq1},     {"IQ2_XXS", &grid_iq2_xxs},
    {"IQ2_XS", &grid_iq2_xs},     {"IQ2_S", &grid_iq2_s},   {"IQ3_XXS", &grid_iq3_xxs},
    {"IQ3_S", &grid_iq3_s},
};

struct grid *find_grid(const char *encoding)
{
    for (size_t i = 0; i < sizeof grids / sizeof *grids; i++)
        if (strcmp(grids[i].encoding, encoding) == 0)
            return grids[i].grid;
    return NULL;
}

/* Lists while they are made. */
struct lists {
    uint16_t *near;
    size_t used, size;
};

static int reserve(struct lists *lists, size_t more)
{
    if (lists->used + more <= lists->size)
        return 0;
    size_t size = 2 * lists->size + more;
    uint16_t *near = realloc(lists->near, size * sizeof *near);
    if (near == NULL)
        return -1;
    lists->near = near;
    lists->size = size;
    return 0;
}

/* Squared distances fit into a byte: they are at most 4 * 49. */
#define DISTANCES 256

/* Append the list of a point; `squares` has its squared distance to each grid point. */
static int append_list(struct lists *lists, struct point *point, const uint8_t *squares,
                       const uint16_t *codes, size_t count, int distances)
{
    uint32_t place[DISTANCES] = {0}, length = 0;
    for (size_t i = 0; i < count; i++)
        place[squares[i]]++;
    int limit = 0;
    for (; limit < DISTANCES && distances > 0; limit++) {
        uint32_t here = place[limit];
        place[limit] = length;
        length += here;
        distances -= here > 0;
    }
    size_t padded = (length + LIST_UNIT - 1) / LIST_UNIT * LIST_UNIT;
    if (reserve(lists, padded) < 0)
        return -1;
    uint16_t *near = lists->near + lists->used;
    for (size_t i = 0; i < count; i++)
        if (squares[i] < limit)
            near[place[squares[i]]++] = codes[i];
    for (size_t i = length; i < padded; i++)
        near[i] = near[length - 1];
    point->first = (uint32_t)lists->used;
    point->length = (uint16_t)length;
    lists->used += padded;
    return 0;
}

/* Fill the lists of all points that are not on the grid and have levels up to `most`. */
static int fill_lists(struct lists *lists, const struct grid *grid, struct point *points,
                      const uint8_t *levels, const uint16_t *codes, size_t count, int distances,
                      uint8_t *squares)
{
    int mask = (1 << grid->bits) - 1, most = grid->bits == 2 ? 2 : 7;
    for (uint32_t code = 0; code < 1u << (size_t)grid->bits * grid->coordinates; code++) {
        int inside = 1;
        for (size_t c = 0; c < grid->coordinates; c++)
            inside &= (int)(code >> (size_t)grid->bits * c & (uint32_t)mask) <= most;
        if (!inside || points[code].index != OFF_GRID)
            continue;
        memset(squares, 0, count);
        for (size_t c = 0; c < grid->coordinates; c++) {
            uint8_t level = (uint8_t)(code >> (size_t)grid->bits * c & (uint32_t)mask);
            const uint8_t *others = levels + c * count;
            for (size_t i = 0; i < count; i++) {
                uint8_t apart = (uint8_t)(others[i] - level);
                squares[i] = (uint8_t)(squares[i] + apart * apart);
            }
        }
        if (append_list(lists, points + code, squares, codes, count, distances) < 0)
            return -1;
    }
    return 0;
}

int set_grid(struct grid *grid, const uint8_t *levels, size_t count, int distances)
{
    if (grid->near != NULL)
        return 0;
    size_t all = (size_t)1 << (size_t)grid->bits * grid->coordinates;
    struct lists lists = {NULL, 0, 0};
    uint16_t *codes = calloc(count, sizeof *codes);
    struct point *points = malloc(all * sizeof *points);
    /* Levels by coordinate, and the distances of a point. */
    uint8_t *space = malloc((grid->coordinates + 1) * count);
    if (codes == NULL || points == NULL || space == NULL)
        goto failed;
    for (size_t i = 0; i < all; i++)
        points[i] = (struct point){0, 0, OFF_GRID};
    for (size_t i = 0; i < count; i++) {
        for (size_t c = 0; c < grid->coordinates; c++) {
            uint8_t level = levels[i * grid->coordinates + c];
            space[c * count + i] = level;
            codes[i] = (uint16_t)(codes[i] | level << (size_t)grid->bits * c);
        }
        points[codes[i]].index = (uint16_t)i;
    }
    if (fill_lists(&lists, grid, points, space, codes, count, distances,
                   space + grid->coordinates * count) < 0)
        goto failed;
    free(space);
    grid->codes = codes;
    grid->points = points;
    grid->near = lists.near;
    return 0;
failed:
    free(lists.near);
    free(codes);
    free(points);
    free(space);
    return -1;
}
