/* LD_PRELOAD: notes how much of each AOF is safe from a power loss.

   After every fsync or fdatasync of an .aof file that succeeded, a line "size path" is appended to
   the file that MX_RMQ_FSYNC_LOG names: the size that the file had before the call. If
   MX_RMQ_FSYNC_DELAY is set, the disk is that many microseconds slower. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int log_fd = -1;
static useconds_t delay = 0;

__attribute__((constructor)) static void open_log(void) {
    const char *path = getenv("MX_RMQ_FSYNC_LOG");
    const char *slower = getenv("MX_RMQ_FSYNC_DELAY");
    if (path) log_fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (slower) delay = (useconds_t)atoi(slower);
}

static int sync_and_note(int fd, const char *name) {
    int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, name);
    struct stat before;
    int known = fstat(fd, &before) == 0;
    if (delay) usleep(delay);
    int result = real(fd);
    char link[64], path[PATH_MAX], line[PATH_MAX + 32];
    ssize_t length;
    if (result != 0 || !known || log_fd < 0) return result;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    length = readlink(link, path, sizeof path - 1);
    if (length > 4 && memcmp(path + length - 4, ".aof", 4) == 0) {
        path[length] = 0;
        length = snprintf(line, sizeof line, "%lld %s\n", (long long)before.st_size, path);
        if (write(log_fd, line, length) != length) abort();
    }
    return result;
}

int fsync(int fd) { return sync_and_note(fd, "fsync"); }
int fdatasync(int fd) { return sync_and_note(fd, "fdatasync"); }
