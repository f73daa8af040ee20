/* Work that several threads share. */
#ifndef WEIGHTCTL_SHARING_H
#define WEIGHTCTL_SHARING_H

/* Call this once, before `share`. */
void prepare_sharing(void);

/* Call `work(given)` in `threads` threads, or in fewer, this one included; return when all are done.

   The calls divide the work among themselves. Other threads than this one must not hold Python's
   lock, nor wait for it. */
void share(void (*work)(void *given), void *given, unsigned threads);

#endif
