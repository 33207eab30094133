// A disk that is full or slow, for a server: gcc -shared -fPIC -o disk.so disk.c. The first 8 bytes of the file that
// DISTLOCK_CHAOS_DISK names, which may change at any time, say how it is: 0 as usual, -1 full, else each flush takes so
// many microseconds. Only regular files are on the disk.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

static volatile int64_t usual, *disk = &usual;

__attribute__((constructor)) static void begin(void) {
	const char *path = getenv("DISTLOCK_CHAOS_DISK");
	int fd = path ? open(path, O_RDONLY) : -1;
	if (fd < 0)
		return;
	void *p = mmap(0, 8, PROT_READ, MAP_SHARED, fd, 0);
	if (p != MAP_FAILED)
		disk = p;
	close(fd);
}

static int full(int fd) {
	struct stat s;
	if (*disk != -1 || fstat(fd, &s) != 0 || !S_ISREG(s.st_mode))
		return 0;
	errno = ENOSPC;
	return 1;
}

static void flush(void) {
	if (*disk > 0)
		usleep(*disk);
}

ssize_t write(int fd, const void *b, size_t n) { return full(fd) ? -1 : syscall(SYS_write, fd, b, n); }
ssize_t pwrite(int fd, const void *b, size_t n, off_t at) { return full(fd) ? -1 : syscall(SYS_pwrite64, fd, b, n, at); }
ssize_t pwrite64(int fd, const void *b, size_t n, off64_t at) { return full(fd) ? -1 : syscall(SYS_pwrite64, fd, b, n, at); }
ssize_t writev(int fd, const struct iovec *v, int n) { return full(fd) ? -1 : syscall(SYS_writev, fd, v, n); }

int fsync(int fd) {
	flush();
	return syscall(SYS_fsync, fd);
}

int fdatasync(int fd) {
	flush();
	return syscall(SYS_fdatasync, fd);
}
