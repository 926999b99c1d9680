/* LD_PRELOAD: a wall clock that can be set.

   The file that MX_RMQ_CLOCK names holds 8 bytes: the microseconds by which the clock is off. It is
   mapped into memory, so a change applies at once. The monotonic clock is unchanged. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static int64_t none = 0;
static volatile int64_t *off_us = &none;
static int (*real_clock_gettime)(clockid_t, struct timespec *);

__attribute__((constructor)) static void map_offset(void) {
    const char *path = getenv("MX_RMQ_CLOCK");
    int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    void *mapped = fd < 0 ? MAP_FAILED : mmap(NULL, sizeof none, PROT_READ, MAP_SHARED, fd, 0);
    if (mapped == MAP_FAILED) abort();
    close(fd);
    off_us = mapped;
    real_clock_gettime = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
}

int clock_gettime(clockid_t id, struct timespec *ts) {
    /* Others' constructors may ask before ours has run. */
    int result = real_clock_gettime ? real_clock_gettime(id, ts)
                                    : (int)syscall(SYS_clock_gettime, id, ts);
    if (result == 0 && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) {
        int64_t ns = ts->tv_nsec + (*off_us % 1000000) * 1000;
        ts->tv_sec += *off_us / 1000000;
        if (ns < 0) { ns += 1000000000; ts->tv_sec--; }
        if (ns >= 1000000000) { ns -= 1000000000; ts->tv_sec++; }
        ts->tv_nsec = ns;
    }
    return result;
}

int gettimeofday(struct timeval *restrict tv, void *restrict zone) {
    struct timespec ts;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &ts) != 0) return -1;
    tv->tv_sec = ts.tv_sec;
    tv->tv_usec = ts.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *at) {
    struct timespec ts;
    clock_gettime(CLOCK_REALTIME, &ts);
    if (at) *at = ts.tv_sec;
    return ts.tv_sec;
}
