/* Grids: the groups of levels that the IQ1, IQ2 and IQ3 types can store.

   A group is a point with 4 or 8 coordinates, its levels. Its code has the levels in 3 or 2 bits
   each, the first lowest. Only points of the grid can be stored, by their index. For each other
   point there is a list of near grid points: all those at the smallest few distances, the nearest
   first. The same as weightctl/codecs/grids.py. */
#ifndef WEIGHTCTL_GRIDS_H
#define WEIGHTCTL_GRIDS_H

#include <stddef.h>
#include <stdint.h>

/* The index of a point that is not on the grid. */
#define OFF_GRID 0xFFFF
/* Lists are followed by copies of their last point, up to a multiple of this. */
#define LIST_UNIT 16

struct point {
    uint32_t first; /* where the list begins in `near` */
    uint16_t length;
    uint16_t index;
};

/* `codes` has the codes of the grid points, `points` has all points by code, and `near` has lists
   of codes. They are NULL until `set_grid` is called. */
struct grid {
    size_t coordinates;
    int bits;
    uint16_t *codes;
    struct point *points;
    uint16_t *near;
};

extern struct grid grid_iq1, grid_iq2_xxs, grid_iq2_xs, grid_iq2_s, grid_iq3_xxs, grid_iq3_s;

/* The grid of an encoding; NULL if it has none. */
struct grid *find_grid(const char *encoding);

/* Set a grid to `count` points; point i has levels[i * coordinates] and those after it. Lists have
   the points at the smallest `distances` distances. Does nothing if the grid is set. Returns -1 if
   it cannot allocate memory. Only one thread may call this at a time. */
int set_grid(struct grid *grid, const uint8_t *levels, size_t count, int distances);

#endif
