/* Preloaded into a process: clocks that stood still while it was stopped, as a suspended machine's do, or were set.
 *
 * CLOCKS_FILE, or the file that use_clocks() is given, holds three numbers of 64 bits: by how many ns CLOCK_MONOTONIC,
 * CLOCK_BOOTTIME and CLOCK_REALTIME are ahead of the kernel's. CLOCK_MONOTONIC_RAW is the kernel's
 * CLOCK_MONOTONIC, for records. Calls that sleep until a time get the kernel's. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define NS 1000000000LL

static const volatile long long *ahead;

void use_clocks(const char *path)
{
    int file = open(path, O_RDONLY);
    ahead = mmap(NULL, 3 * sizeof(long long), PROT_READ, MAP_SHARED, file, 0);
    close(file);
}

__attribute__((constructor)) static void map_clocks(void)
{
    const char *path = getenv("CLOCKS_FILE");
    if (path != NULL)
        use_clocks(path);
}

static long long ahead_of_kernel(clockid_t clock)
{
    if (ahead == NULL || ahead == MAP_FAILED)
        return 0;
    switch (clock) {
    case CLOCK_MONOTONIC:
    case CLOCK_MONOTONIC_COARSE:
        return ahead[0];
    case CLOCK_BOOTTIME:
        return ahead[1];
    case CLOCK_REALTIME:
    case CLOCK_REALTIME_COARSE:
        return ahead[2];
    default:
        return 0;
    }
}

static struct timespec later(struct timespec at, long long ns)
{
    long long total = at.tv_sec * NS + at.tv_nsec + ns;
    return (struct timespec){total / NS, total % NS};
}

int clock_gettime(clockid_t clock, struct timespec *now)
{
    static int (*real)(clockid_t, struct timespec *);
    if (real == NULL)
        real = REAL(clock_gettime);
    if (clock == CLOCK_MONOTONIC_RAW)
        return real(CLOCK_MONOTONIC, now);
    int failed = real(clock, now);
    if (!failed)
        *now = later(*now, ahead_of_kernel(clock));
    return failed;
}

int clock_nanosleep(clockid_t clock, int flags, const struct timespec *until, struct timespec *left)
{
    struct timespec kernels = flags & TIMER_ABSTIME ? later(*until, -ahead_of_kernel(clock)) : *until;
    return REAL(clock_nanosleep)(clock, flags, &kernels, left);
}

int sem_clockwait(sem_t *sem, clockid_t clock, const struct timespec *until)
{
    struct timespec kernels = later(*until, -ahead_of_kernel(clock));
    return REAL(sem_clockwait)(sem, clock, &kernels);
}

int sem_timedwait(sem_t *sem, const struct timespec *until)
{
    struct timespec kernels = later(*until, -ahead_of_kernel(CLOCK_REALTIME));
    return REAL(sem_timedwait)(sem, &kernels);
}

int pthread_cond_timedwait(pthread_cond_t *cond, pthread_mutex_t *mutex, const struct timespec *until)
{
    struct timespec kernels = later(*until, -ahead_of_kernel(CLOCK_MONOTONIC));
    return REAL(pthread_cond_timedwait)(cond, mutex, &kernels);
}
