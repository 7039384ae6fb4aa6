/* Writes down what a process does to the files below a directory, and what it hands to sockets.
 *
 * Loaded with LD_PRELOAD. RECORD_ROOT is the directory, RECORD_LOG the file that entries are appended to; recording.py
 * reads them. Each is one writev to a descriptor that appends, so entries of several threads stand one behind the
 * other, and a SIGKILL cuts off the last one at the most.
 *
 * What makes something durable is written down when it begins and when it has returned, a change when it has been
 * made, and what is sent before anybody can receive it. So the log never says that something was durable, or not yet
 * sent, when it may have been otherwise.
 *
 * Not seen: stores through writable maps, io_uring, sendfile, stdio, and system calls that go past the C library.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

/* As in recording.py. */
enum kind {
    OPENED = 1, WRITTEN, RESIZED, SYNCING, SYNCED, RENAMED, REMOVED, DIRECTORY_MADE, DIRECTORY_REMOVED, SENDING
};

struct entry {
    uint32_t kind, path_length;
    uint64_t file, when;
    int64_t offset;
    uint64_t size, data_length;
};

#define MOST_FILES 4096
#define MOST_PARTS 1024 /* of one write; no system call takes more */

static int log_file = -1;
static char root[PATH_MAX];
static size_t root_length;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct { uint64_t device, inode; } files[MOST_FILES]; /* those below the root that were opened for writing */
static int file_count;

/* The C library's own functions, by the name with `real_` before it. */
#define FUNCTIONS(F) \
    F(int, open, (const char *, int, ...)) \
    F(int, openat, (int, const char *, int, ...)) \
    F(ssize_t, write, (int, const void *, size_t)) \
    F(ssize_t, pwrite, (int, const void *, size_t, off_t)) \
    F(ssize_t, writev, (int, const struct iovec *, int)) \
    F(ssize_t, pwritev, (int, const struct iovec *, int, off_t)) \
    F(int, ftruncate, (int, off_t)) \
    F(int, posix_fallocate, (int, off_t, off_t)) \
    F(int, fsync, (int)) \
    F(int, fdatasync, (int)) \
    F(int, renameat2, (int, const char *, int, const char *, unsigned)) \
    F(int, unlinkat, (int, const char *, int)) \
    F(int, mkdirat, (int, const char *, mode_t)) \
    F(ssize_t, send, (int, const void *, size_t, int)) \
    F(ssize_t, sendto, (int, const void *, size_t, int, const struct sockaddr *, socklen_t)) \
    F(ssize_t, sendmsg, (int, const struct msghdr *, int))
#define POINTER(type, name, arguments) static type(*real_##name) arguments;
FUNCTIONS(POINTER)

static void give_up(const char *what)
{
    real_write(STDERR_FILENO, what, strlen(what));
    _exit(99);
}

__attribute__((constructor)) static void begin(void)
{
    const char *directory = getenv("RECORD_ROOT"), *path = getenv("RECORD_LOG");
#define FIND(type, name, arguments) *(void **)&real_##name = dlsym(RTLD_NEXT, #name);
    FUNCTIONS(FIND)
    if (!directory || !path)
        return;
    int opened = realpath(directory, root) ? real_open(path, O_WRONLY | O_CREAT | O_APPEND, 0644) : -1;
    if (opened < 0)
        give_up("recorder: RECORD_ROOT or RECORD_LOG cannot be used\n");
    root_length = strlen(root);
    log_file = fcntl(opened, F_DUPFD_CLOEXEC, 900); /* out of the way of the process's own */
    if (log_file < 0)
        log_file = opened;
    else
        close(opened);
}

/* -- entries --------------------------------------------------------------------------------------------------- */

static void record(enum kind kind, uint64_t file, int64_t offset, uint64_t size, const char *path, size_t path_length,
                   const struct iovec *parts, int count, uint64_t length)
{
    int saved = errno, used = 2;
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    uint64_t when = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
    struct entry entry = {kind, (uint32_t)path_length, file, when, offset, size, length};
    /* No larger than needed: a handler of a signal writes to Python's wake-up socket, and its stack, which faulthandler
     * takes from the heap, has a few KiB. */
    struct iovec out[count + 2];
    out[0] = (struct iovec){&entry, sizeof entry};
    out[1] = (struct iovec){(void *)path, path_length};
    uint64_t left = length;
    for (int i = 0; i < count && left && used < MOST_PARTS; i++) {
        out[used] = parts[i];
        if (out[used].iov_len > left)
            out[used].iov_len = left;
        left -= out[used++].iov_len;
    }
    if (left || real_writev(log_file, out, used) != (ssize_t)(sizeof entry + path_length + length))
        give_up("recorder: an entry could not be written\n");
    errno = saved;
}

static void record_path(enum kind kind, uint64_t file, int64_t offset, const char *path, size_t length)
{
    record(kind, file, offset, 0, path, length, NULL, 0, 0);
}

/* -- which file ------------------------------------------------------------------------------------------------ */

/* The path of what a directory's descriptor and a name mean, below the root and relative to it: 0 for all else. */
static int below_root(int directory, const char *name, char *relative)
{
    char joined[2 * PATH_MAX + 2], real[PATH_MAX], link[64];
    size_t length = 0;
    if (log_file < 0 || !name)
        return 0;
    if (name[0] != '/' && directory == AT_FDCWD) {
        if (!getcwd(joined, PATH_MAX))
            return 0;
        length = strlen(joined);
    } else if (name[0] != '/') {
        snprintf(link, sizeof link, "/proc/self/fd/%d", directory);
        ssize_t got = readlink(link, joined, PATH_MAX - 1);
        if (got <= 0)
            return 0;
        length = (size_t)got;
    }
    snprintf(joined + length, sizeof joined - length, "%s%s", length ? "/" : "", name);
    length = strlen(joined);
    while (length > 1 && joined[length - 1] == '/')
        joined[--length] = 0;
    char *last = strrchr(joined, '/');
    if (!last)
        return 0;
    *last = 0; /* the last part may not be there any more, or be a link itself: only what leads to it is resolved */
    if (!realpath(last == joined ? "/" : joined, real))
        return 0;
    if (strncmp(real, root, root_length) || (real[root_length] && real[root_length] != '/'))
        return 0;
    const char *inside = real[root_length] ? real + root_length + 1 : "";
    int written = snprintf(relative, PATH_MAX, "%s%s%s", inside, *inside ? "/" : "", last + 1);
    return written > 0 && written < PATH_MAX;
}

static int find(const struct stat *about) /* with the lock held */
{
    for (int i = file_count - 1; i >= 0; i--)
        if (files[i].inode == about->st_ino && files[i].device == about->st_dev)
            return i;
    return -1;
}

/* Whether what is written to a descriptor is recorded; then its inode, and whether each write is synced. */
static int is_recorded(int descriptor, uint64_t *inode, int *synced)
{
    struct stat about;
    int saved = errno, found = -1;
    if (log_file >= 0 && descriptor != log_file && !fstat(descriptor, &about) && S_ISREG(about.st_mode)) {
        pthread_mutex_lock(&lock);
        found = find(&about);
        pthread_mutex_unlock(&lock);
    }
    if (found >= 0) {
        int flags = fcntl(descriptor, F_GETFL);
        *inode = about.st_ino;
        *synced = flags >= 0 && (flags & O_DSYNC);
    }
    errno = saved;
    return found >= 0;
}

static int is_socket(int descriptor)
{
    struct stat about;
    int saved = errno, found = log_file >= 0 && !fstat(descriptor, &about) && S_ISSOCK(about.st_mode);
    errno = saved;
    return found;
}

/* -- files ----------------------------------------------------------------------------------------------------- */

static void opened(int directory, const char *name, int flags, int descriptor, int was_there)
{
    char path[PATH_MAX];
    struct stat about;
    int saved = errno;
    if (log_file >= 0 && descriptor >= 0 && (flags & O_ACCMODE) != O_RDONLY && !fstat(descriptor, &about) &&
        S_ISREG(about.st_mode)) {
        int inside = below_root(directory, name, path);
        pthread_mutex_lock(&lock);
        int at = find(&about);
        if (inside && at < 0) {
            if (file_count == MOST_FILES)
                give_up("recorder: too many files\n");
            files[file_count].device = about.st_dev;
            files[file_count++].inode = about.st_ino;
        } else if (!inside && at >= 0) {
            files[at] = files[--file_count]; /* a file elsewhere has the inode of one that is gone */
        }
        pthread_mutex_unlock(&lock);
        if (inside) {
            record_path(OPENED, about.st_ino, !was_there, path, strlen(path));
            if (was_there && (flags & O_TRUNC))
                record(RESIZED, about.st_ino, 0, 0, NULL, 0, NULL, 0, 0);
        }
    }
    errno = saved;
}

#define MODE_OF(flags) \
    mode_t mode = 0; \
    if (flags & (O_CREAT | __O_TMPFILE)) { \
        va_list rest; \
        va_start(rest, flags); \
        mode = va_arg(rest, mode_t); \
        va_end(rest); \
    }

int openat(int directory, const char *name, int flags, ...)
{
    MODE_OF(flags)
    struct stat about;
    int saved = errno, was_there = log_file >= 0 && !fstatat(directory, name, &about, 0);
    errno = saved;
    int descriptor = real_openat(directory, name, flags, mode);
    opened(directory, name, flags, descriptor, was_there);
    return descriptor;
}

int openat64(int directory, const char *name, int flags, ...)
{
    MODE_OF(flags)
    return openat(directory, name, flags, mode);
}

int open(const char *name, int flags, ...)
{
    MODE_OF(flags)
    return openat(AT_FDCWD, name, flags, mode);
}

int open64(const char *name, int flags, ...)
{
    MODE_OF(flags)
    return openat(AT_FDCWD, name, flags, mode);
}

int creat(const char *name, mode_t mode)
{
    return openat(AT_FDCWD, name, O_CREAT | O_WRONLY | O_TRUNC, mode);
}

int creat64(const char *name, mode_t mode)
{
    return creat(name, mode);
}

int ftruncate(int descriptor, off_t size)
{
    uint64_t inode;
    int synced, recorded = is_recorded(descriptor, &inode, &synced), result = real_ftruncate(descriptor, size);
    if (recorded && !result)
        record(RESIZED, inode, 0, (uint64_t)size, NULL, 0, NULL, 0, 0);
    return result;
}

int ftruncate64(int descriptor, off_t size)
{
    return ftruncate(descriptor, size);
}

int truncate(const char *name, off_t size)
{
    int descriptor = open(name, O_WRONLY);
    if (descriptor < 0)
        return -1;
    int result = ftruncate(descriptor, size), saved = errno;
    close(descriptor);
    errno = saved;
    return result;
}

int truncate64(const char *name, off_t size)
{
    return truncate(name, size);
}

int posix_fallocate(int descriptor, off_t offset, off_t length)
{
    uint64_t inode;
    struct stat about;
    int synced, recorded = is_recorded(descriptor, &inode, &synced);
    int result = real_posix_fallocate(descriptor, offset, length);
    if (recorded && !result && !fstat(descriptor, &about))
        record(RESIZED, inode, 0, (uint64_t)about.st_size, NULL, 0, NULL, 0, 0);
    return result;
}

int posix_fallocate64(int descriptor, off_t offset, off_t length)
{
    return posix_fallocate(descriptor, offset, length);
}

/* -- writes and sends ------------------------------------------------------------------------------------------ */

static void sending(int descriptor, const struct iovec *parts, int count)
{
    uint64_t length = 0;
    for (int i = 0; i < count; i++)
        length += parts[i].iov_len;
    record(SENDING, (uint64_t)descriptor, 0, 0, NULL, 0, parts, count, length);
}

/* Does `call` and records it: a write to a file at `place`, or where the file stands when that is negative. */
#define WRITE(call, parts, count, place) \
    uint64_t inode; \
    int synced, recorded = is_recorded(descriptor, &inode, &synced); \
    if (!recorded && is_socket(descriptor)) \
        sending(descriptor, parts, count); \
    ssize_t result = call; \
    if (recorded && result > 0) { \
        off_t at = place; \
        if (at < 0) \
            at = lseek(descriptor, 0, SEEK_CUR) - result; \
        record(WRITTEN, inode, at, (uint64_t)synced, NULL, 0, parts, count, (uint64_t)result); \
    } \
    return result;

ssize_t write(int descriptor, const void *data, size_t length)
{
    struct iovec part = {(void *)data, length};
    WRITE(real_write(descriptor, data, length), &part, 1, -1)
}

ssize_t pwrite(int descriptor, const void *data, size_t length, off_t offset)
{
    struct iovec part = {(void *)data, length};
    WRITE(real_pwrite(descriptor, data, length, offset), &part, 1, offset)
}

ssize_t pwrite64(int descriptor, const void *data, size_t length, off_t offset)
{
    return pwrite(descriptor, data, length, offset);
}

ssize_t writev(int descriptor, const struct iovec *parts, int count)
{
    WRITE(real_writev(descriptor, parts, count), parts, count, -1)
}

ssize_t pwritev(int descriptor, const struct iovec *parts, int count, off_t offset)
{
    WRITE(real_pwritev(descriptor, parts, count, offset), parts, count, offset)
}

ssize_t pwritev64(int descriptor, const struct iovec *parts, int count, off_t offset)
{
    return pwritev(descriptor, parts, count, offset);
}

ssize_t send(int descriptor, const void *data, size_t length, int flags)
{
    struct iovec part = {(void *)data, length};
    if (is_socket(descriptor))
        sending(descriptor, &part, 1);
    return real_send(descriptor, data, length, flags);
}

ssize_t sendto(int descriptor, const void *data, size_t length, int flags, const struct sockaddr *to, socklen_t size)
{
    struct iovec part = {(void *)data, length};
    if (is_socket(descriptor))
        sending(descriptor, &part, 1);
    return real_sendto(descriptor, data, length, flags, to, size);
}

ssize_t sendmsg(int descriptor, const struct msghdr *message, int flags)
{
    if (is_socket(descriptor))
        sending(descriptor, message->msg_iov, (int)message->msg_iovlen);
    return real_sendmsg(descriptor, message, flags);
}

/* -- syncs ----------------------------------------------------------------------------------------------------- */

static int sync_with(int (*real)(int), int descriptor)
{
    char link[64], target[PATH_MAX], path[PATH_MAX] = "";
    struct stat about;
    uint64_t inode = 0;
    int synced, recorded = is_recorded(descriptor, &inode, &synced);
    if (!recorded && log_file >= 0 && !fstat(descriptor, &about) && S_ISDIR(about.st_mode)) {
        snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
        ssize_t length = readlink(link, target, sizeof target - 1);
        target[length > 0 ? length : 0] = 0;
        inode = about.st_ino;
        if (!strcmp(target, root)) {
            strcpy(path, ".");
            recorded = 1;
        } else {
            recorded = below_root(AT_FDCWD, target, path);
        }
    }
    size_t length = recorded ? strlen(path) : 0;
    if (recorded)
        record_path(SYNCING, inode, 0, path, length);
    int result = real(descriptor);
    if (recorded && !result)
        record_path(SYNCED, inode, 0, path, length);
    return result;
}

int fsync(int descriptor)
{
    return sync_with(real_fsync, descriptor);
}

int fdatasync(int descriptor)
{
    return sync_with(real_fdatasync, descriptor);
}

/* -- names ----------------------------------------------------------------------------------------------------- */

int renameat2(int old_directory, const char *old, int new_directory, const char *new, unsigned flags)
{
    char paths[2 * PATH_MAX], second[PATH_MAX];
    int result = real_renameat2(old_directory, old, new_directory, new, flags);
    if (!result && below_root(old_directory, old, paths) && below_root(new_directory, new, second)) {
        size_t length = strlen(paths) + 1;
        strcpy(paths + length, second);
        record_path(RENAMED, 0, 0, paths, length + strlen(second));
    }
    return result;
}

int renameat(int old_directory, const char *old, int new_directory, const char *new)
{
    return renameat2(old_directory, old, new_directory, new, 0);
}

int rename(const char *old, const char *new)
{
    return renameat2(AT_FDCWD, old, AT_FDCWD, new, 0);
}

static void named(enum kind kind, int directory, const char *name, int result)
{
    char path[PATH_MAX];
    int saved = errno;
    if (!result && below_root(directory, name, path))
        record_path(kind, 0, 0, path, strlen(path));
    errno = saved;
}

int unlinkat(int directory, const char *name, int flags)
{
    int result = real_unlinkat(directory, name, flags);
    named(flags & AT_REMOVEDIR ? DIRECTORY_REMOVED : REMOVED, directory, name, result);
    return result;
}

int unlink(const char *name)
{
    return unlinkat(AT_FDCWD, name, 0);
}

int rmdir(const char *name)
{
    return unlinkat(AT_FDCWD, name, AT_REMOVEDIR);
}

int mkdirat(int directory, const char *name, mode_t mode)
{
    int result = real_mkdirat(directory, name, mode);
    named(DIRECTORY_MADE, directory, name, result);
    return result;
}

int mkdir(const char *name, mode_t mode)
{
    return mkdirat(AT_FDCWD, name, mode);
}
