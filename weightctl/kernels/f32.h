/* Float32 as float32. */
static void f32_encode(const float *rows, size_t count, size_t columns, const float *importance,
                       uint8_t *out)
{
    (void)importance;
    memcpy(out, rows, count * columns * sizeof *rows);
}

static void f32_decode(const uint8_t *blocks, size_t count, float *out)
{
    memcpy(out, blocks, count * sizeof *out);
}
