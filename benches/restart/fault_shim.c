/* Makes the disk slow or faulty for one program: LD_PRELOAD this, with FAULT_DIRECTORY (the data directory) and FAULT_CONTROL (a file of
 * 64 bytes, shared with the script that measures). Only files below the directory are affected. The control file has u32 words:
 *   0 delay of fsync and fdatasync in ms   1 errno of fsync and fdatasync   2 errno of writes   3 errno of opening for writing, creating
 *   4 errno of fallocate   5 errno of rename and unlink   6 1: only files whose name begins with "log-"
 *   8 number of syncs   9 number of writes   10 number of failed calls
 * Numbers are counted by the shim. An errno of 0 means that the call is passed on.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

static volatile uint32_t *words;
static const char *directory;
static size_t directory_length;

#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

__attribute__((constructor)) static void begin(void) {
  const char *control = getenv("FAULT_CONTROL");
  directory = getenv("FAULT_DIRECTORY");
  if (!control || !directory) return;
  directory_length = strlen(directory);
  int fd = NEXT(open64)(control, O_RDWR);
  if (fd < 0) return;
  void *p = mmap(NULL, 64, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  close(fd);
  if (p != MAP_FAILED) words = p;
}

static int below(const char *path) {
  if (!words || !path || strncmp(path, directory, directory_length)) return 0;
  const char *name = strrchr(path, '/');
  return !words[6] || (name && !strncmp(name, "/log-", 5));
}
static int affected(int fd) {
  char link[64], path[4096];
  if (!words) return 0;
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t n = readlink(link, path, sizeof path - 1);
  if (n < 0) return 0;
  path[n] = 0;
  return below(path);
}
static int fails(int word) {
  if (!words[word]) return 0;
  __atomic_fetch_add(&words[10], 1, __ATOMIC_RELAXED);
  errno = (int)words[word];
  return 1;
}
static int slow(void) {
  __atomic_fetch_add(&words[8], 1, __ATOMIC_RELAXED);
  if (words[0]) {
    struct timespec t = {words[0] / 1000, (long)(words[0] % 1000) * 1000000};
    nanosleep(&t, NULL);
  }
  return fails(1);
}

int fsync(int fd) { return affected(fd) && slow() ? -1 : NEXT(fsync)(fd); }
int fdatasync(int fd) { return affected(fd) && slow() ? -1 : NEXT(fdatasync)(fd); }
static int write_fails(int fd) {
  if (!affected(fd)) return 0;
  __atomic_fetch_add(&words[9], 1, __ATOMIC_RELAXED);
  return fails(2);
}
ssize_t write(int fd, const void *b, size_t n) { return words && fd > 2 && write_fails(fd) ? -1 : NEXT(write)(fd, b, n); }
ssize_t pwrite64(int fd, const void *b, size_t n, off64_t at) { return write_fails(fd) ? -1 : NEXT(pwrite64)(fd, b, n, at); }
ssize_t pwrite(int fd, const void *b, size_t n, off_t at) { return write_fails(fd) ? -1 : NEXT(pwrite)(fd, b, n, at); }
int fallocate64(int fd, int mode, off64_t at, off64_t n) { return affected(fd) && fails(4) ? -1 : NEXT(fallocate64)(fd, mode, at, n); }
int fallocate(int fd, int mode, off_t at, off_t n) { return affected(fd) && fails(4) ? -1 : NEXT(fallocate)(fd, mode, at, n); }
int rename(const char *a, const char *b) { return below(b) && fails(5) ? -1 : NEXT(rename)(a, b); }
int unlink(const char *a) { return below(a) && fails(5) ? -1 : NEXT(unlink)(a); }
#define OPEN(name)                                                                              \
  int name(const char *path, int flags, ...) {                                                  \
    va_list v;                                                                                  \
    va_start(v, flags);                                                                         \
    mode_t mode = flags & O_CREAT ? va_arg(v, mode_t) : 0;                                      \
    va_end(v);                                                                                  \
    if (flags & (O_CREAT | O_WRONLY | O_RDWR) && below(path) && fails(3)) return -1;            \
    return NEXT(name)(path, flags, mode);                                                       \
  }
OPEN(open)
OPEN(open64)
