/* Disturbs one system call on a file below a folder: it fails, does half of its work, or an input is replaced before it.

Loaded with LD_PRELOAD, so it sees the calls of all libraries except those that the C library makes itself, such as
those behind fclose. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { WRITE, SYNC, RENAME, READ, OPEN, REMOVE, KINDS };
enum { PASS, FAIL, HALF };

static char folder[PATH_MAX], replaced[PATH_MAX], replacement[PATH_MAX];
static int disturbed, failure; /* failure: errno; 0 for half of the work; -1 to replace an input */
static long chosen;
static atomic_long counts[KINDS], hours;

#define REAL(name) \
  static __typeof__(&name) real; \
  if (real == NULL) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

/* Choose the kind of calls, the number of the one to disturb (0: none) and the disturbance. */
void arm(const char *below, int kind, long number, int with, const char *first, const char *second) {
  strncpy(replaced, first, PATH_MAX - 1);
  strncpy(replacement, second, PATH_MAX - 1);
  disturbed = kind, chosen = number, failure = with;
  strncpy(folder, below, PATH_MAX - 1);
}

long counted(int kind) { return counts[kind]; }

/* Let the clock go back by an hour whenever it is read. */
void turn_back(void) { hours = 1; }

static int disturbance(int kind) {
  if (++counts[kind] != chosen || kind != disturbed) return PASS;
  if (failure == 0) return HALF;
  if (failure > 0) {
    errno = failure;
    return FAIL;
  }
  syscall(SYS_renameat2, AT_FDCWD, replaced, AT_FDCWD, replacement, 2);
  return PASS;
}

static int at_path(int kind, const char *path) {
  if (!folder[0] || path == NULL) return PASS;
  if (path[0] == '/' && strncmp(path, folder, strlen(folder)) != 0) return PASS;
  return disturbance(kind);
}

static int at_file(int kind, int file) {
  if (!folder[0]) return PASS;
  char link[64], path[PATH_MAX];
  snprintf(link, sizeof link, "/proc/self/fd/%d", file);
  ssize_t length = readlink(link, path, sizeof path - 1);
  if (length <= 0) return PASS;
  path[length] = 0;
  return path[0] == '/' ? at_path(kind, path) : PASS; /* not of a pipe or a socket */
}

#define AT_FILE(kind, name, file, size, ...) \
  REAL(name); \
  int what = at_file(kind, file); \
  if (what == FAIL) return -1; \
  if (what == HALF) size = size > 1 ? size / 2 : size; \
  return real(__VA_ARGS__)
#define AT_PATH(kind, name, path, ...) \
  REAL(name); \
  if (at_path(kind, path) == FAIL) return -1; \
  return real(__VA_ARGS__)

ssize_t write(int f, const void *p, size_t n) { AT_FILE(WRITE, write, f, n, f, p, n); }
ssize_t pwrite(int f, const void *p, size_t n, off_t o) { AT_FILE(WRITE, pwrite, f, n, f, p, n, o); }
ssize_t pwrite64(int f, const void *p, size_t n, off64_t o) { AT_FILE(WRITE, pwrite64, f, n, f, p, n, o); }
ssize_t writev(int f, const struct iovec *p, int n) { AT_FILE(WRITE, writev, f, n, f, p, n); }
ssize_t sendfile(int o, int i, off_t *p, size_t n) { AT_FILE(WRITE, sendfile, o, n, o, i, p, n); }
ssize_t sendfile64(int o, int i, off64_t *p, size_t n) { AT_FILE(WRITE, sendfile64, o, n, o, i, p, n); }
ssize_t copy_file_range(int i, off64_t *a, int o, off64_t *b, size_t n, unsigned g) {
  AT_FILE(WRITE, copy_file_range, o, n, i, a, o, b, n, g);
}
ssize_t read(int f, void *p, size_t n) { AT_FILE(READ, read, f, n, f, p, n); }
ssize_t pread(int f, void *p, size_t n, off_t o) { AT_FILE(READ, pread, f, n, f, p, n, o); }
ssize_t pread64(int f, void *p, size_t n, off64_t o) { AT_FILE(READ, pread64, f, n, f, p, n, o); }
ssize_t readv(int f, const struct iovec *p, int n) { AT_FILE(READ, readv, f, n, f, p, n); }

size_t fwrite(const void *p, size_t size, size_t n, FILE *f) {
  REAL(fwrite);
  if (at_file(WRITE, fileno(f)) == PASS) return real(p, size, n, f);
  errno = failure > 0 ? failure : ENOSPC; /* a half write of the C library is one that it could not continue */
  return real(p, size, n / 2, f);
}

size_t fread(void *p, size_t size, size_t n, FILE *f) {
  REAL(fread);
  if (at_file(READ, fileno(f)) != FAIL) return real(p, size, n, f);
  return 0;
}

static int sync_call(int (*real)(int), int file) { return at_file(SYNC, file) == FAIL ? -1 : real(file); }
int fsync(int f) { REAL(fsync); return sync_call(real, f); }
int fdatasync(int f) { REAL(fdatasync); return sync_call(real, f); }

int rename(const char *a, const char *b) { AT_PATH(RENAME, rename, b, a, b); }
int renameat(int x, const char *a, int y, const char *b) { AT_PATH(RENAME, renameat, b, x, a, y, b); }
int renameat2(int x, const char *a, int y, const char *b, unsigned g) { AT_PATH(RENAME, renameat2, b, x, a, y, b, g); }
int link(const char *a, const char *b) { AT_PATH(RENAME, link, b, a, b); }
int linkat(int x, const char *a, int y, const char *b, int g) { AT_PATH(RENAME, linkat, b, x, a, y, b, g); }
int unlink(const char *a) { AT_PATH(REMOVE, unlink, a, a); }
int unlinkat(int x, const char *a, int g) { AT_PATH(REMOVE, unlinkat, a, x, a, g); }
int rmdir(const char *a) { AT_PATH(REMOVE, rmdir, a, a); }

#define MODE \
  int mode = 0; \
  if (flags & (O_CREAT | __O_TMPFILE)) { \
    va_list rest; \
    va_start(rest, flags); \
    mode = va_arg(rest, int); \
    va_end(rest); \
  }

int open(const char *a, int flags, ...) { MODE AT_PATH(OPEN, open, a, a, flags, mode); }
int open64(const char *a, int flags, ...) { MODE AT_PATH(OPEN, open64, a, a, flags, mode); }
int openat(int x, const char *a, int flags, ...) { MODE AT_PATH(OPEN, openat, a, x, a, flags, mode); }
int openat64(int x, const char *a, int flags, ...) { MODE AT_PATH(OPEN, openat64, a, x, a, flags, mode); }
FILE *fopen(const char *a, const char *m) {
  REAL(fopen);
  return at_path(OPEN, a) == FAIL ? NULL : real(a, m);
}
FILE *fopen64(const char *a, const char *m) {
  REAL(fopen64);
  return at_path(OPEN, a) == FAIL ? NULL : real(a, m);
}

static time_t back(void) { return hours ? 3600 * (hours++ - 1) : 0; }

int clock_gettime(clockid_t clock, struct timespec *now) {
  REAL(clock_gettime);
  int code = real(clock, now);
  if (code == 0 && clock == CLOCK_REALTIME) now->tv_sec -= back();
  return code;
}

int gettimeofday(struct timeval *now, void *zone) {
  REAL(gettimeofday);
  int code = real(now, zone);
  if (code == 0) now->tv_sec -= back();
  return code;
}

time_t time(time_t *place) {
  REAL(time);
  time_t now = real(NULL) - back();
  if (place != NULL) *place = now;
  return now;
}
