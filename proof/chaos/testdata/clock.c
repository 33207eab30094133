// A clock that jumps, for a server: gcc -shared -fPIC -o clock.so clock.c. The wall clock is ahead by the microseconds
// in the first 8 bytes of the file that DISTLOCK_CHAOS_CLOCK names, which may change at any time.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t none, *ahead = &none;

__attribute__((constructor)) static void begin(void) {
	const char *path = getenv("DISTLOCK_CHAOS_CLOCK");
	int fd = path ? open(path, O_RDONLY) : -1;
	if (fd < 0)
		return;
	void *p = mmap(0, 8, PROT_READ, MAP_SHARED, fd, 0);
	if (p != MAP_FAILED)
		ahead = p;
	close(fd);
}

int clock_gettime(clockid_t id, struct timespec *t) {
	int r = syscall(SYS_clock_gettime, id, t);
	if (r == 0 && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) {
		int64_t ns = t->tv_sec * 1000000000LL + t->tv_nsec + *ahead * 1000;
		t->tv_sec = ns / 1000000000LL;
		t->tv_nsec = ns % 1000000000LL;
	}
	return r;
}

int gettimeofday(struct timeval *restrict t, void *restrict zone) {
	struct timespec now;
	clock_gettime(CLOCK_REALTIME, &now);
	t->tv_sec = now.tv_sec;
	t->tv_usec = now.tv_nsec / 1000;
	return 0;
}

time_t time(time_t *t) {
	struct timespec now;
	clock_gettime(CLOCK_REALTIME, &now);
	if (t)
		*t = now.tv_sec;
	return now.tv_sec;
}
