/*
 * Tries what a hostile program in a sandbox would try and says how each attempt ended, one line each:
 * "name ok" or "name errno". Built static by compileProbe().
 * usage: probe [abstract-socket-name] | probe --cripple | probe --shared
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

static void say(const char *name, long result) {
  if (result >= 0) printf("%s ok\n", name);
  else printf("%s %s\n", name, strerrorname_np(errno));
  fflush(stdout);
}

/* Runs an attempt in a child, since some of them change or kill the process. */
#define TRY(name, expression)                          \
  do {                                                 \
    fflush(stdout);                                    \
    pid_t child = fork();                              \
    if (child == 0) {                                  \
      errno = 0;                                       \
      say(name, (long)(expression));                   \
      _exit(0);                                        \
    }                                                  \
    int status = 0;                                    \
    waitpid(child, &status, 0);                        \
    if (WIFSIGNALED(status)) printf("%s killed\n", name); \
  } while (0)

static long abstract_connect(const char *name) {
  struct sockaddr_un address = {.sun_family = AF_UNIX};
  size_t length = strlen(name);
  memcpy(address.sun_path + 1, name, length);
  int fd = socket(AF_UNIX, SOCK_STREAM, 0);
  return connect(fd, (struct sockaddr *)&address, offsetof(struct sockaddr_un, sun_path) + 1 + length);
}

/*
 * Has the owner of a file signalled, whom its user names, and looks whether a process stood still or ended for it. Whose
 * signal it is the kernel decides by user ids alone, and the machine's root, which a container's is, may name anybody.
 */
static long signal_by_file(pid_t victim, int number) {
  int ends[2];
  char path[64], stat[512] = "";
  if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) < 0 || fcntl(ends[0], F_SETOWN, victim) < 0) return -1;
  /* Where this is refused it is SIGIO. */
  fcntl(ends[0], F_SETSIG, number);
  if (fcntl(ends[0], F_SETFL, O_RDWR | O_ASYNC) < 0 || write(ends[1], "x", 1) < 0) return -1;
  usleep(100000);
  snprintf(path, sizeof path, "/proc/%d/stat", victim);
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0 || read(fd, stat, sizeof stat - 1) <= 0) return 0;
  char *state = strrchr(stat, ')');
  if (state != NULL && strchr("RSD", state[2]) == NULL) return 0;
  errno = EPERM;
  return -1;
}

static long open_read(const char *path) {
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  char byte;
  if (fd < 0) return fd;
  ssize_t length = read(fd, &byte, 1);
  /* A masked file is there and empty. */
  if (length == 0) errno = ENODATA;
  return length > 0 ? 0 : -1;
}

static long open_write(const char *path) {
  return open(path, O_WRONLY | O_CLOEXEC);
}

static long read_memory_of(pid_t pid) {
  char byte;
  struct iovec here = {&byte, 1}, there = {(void *)0x400000, 1};
  return process_vm_readv(pid, &here, 1, &there, 1, 0);
}

#if defined(__x86_64__)
/* The 32-bit table of system calls. */
static long call32(long number, long a, long b) {
  long result;
  __asm__ volatile("int $0x80" : "=a"(result) : "a"(number), "b"(a), "c"(b), "d"(0), "S"(0), "D"(0) : "memory", "r8", "r9", "r10", "r11");
  if (result < 0) {
    errno = (int)-result;
    return -1;
  }
  return result;
}
#define X32 0x40000000L
#endif

int main(int argc, char **argv) {
  if (argc > 1 && strcmp(argv[1], "--cripple") == 0) {
    /* The agent and this command's own monitor: what a process of the same user could do to them. */
    pid_t victims[] = {1, getppid()};
    /* For some microseconds a monitor is still busy with the start of its command. */
    usleep(100000);
    for (int index = 0; index < 2; index++) {
      pid_t victim = victims[index];
      char path[64];
      snprintf(path, sizeof path, "/proc/%d/oom_score_adj", victim);
      say("limits", prlimit(victim, RLIMIT_NOFILE, &(struct rlimit){1, 1}, NULL));
      say("oom-score", ({
            int fd = open(path, O_WRONLY);
            fd < 0 ? fd : write(fd, "1000", 4);
          }));
      say("priority", setpriority(PRIO_PROCESS, victim, 19));
      say("scheduler", sched_setscheduler(victim, SCHED_IDLE, &(struct sched_param){0}));
      say("processors", ({
            cpu_set_t one;
            CPU_ZERO(&one);
            CPU_SET(0, &one);
            sched_setaffinity(victim, sizeof one, &one);
          }));
      say("stop-by-file", signal_by_file(victim, SIGSTOP));
      say("end-by-file", signal_by_file(victim, SIGTERM));
      say("stop", kill(victim, SIGSTOP));
      say("kill", kill(victim, SIGKILL));
    }
    return 0;
  }
  if (argc > 1 && strcmp(argv[1], "--shared") == 0) {
    /* What reaches tables and disks of the whole machine. */
    TRY("aio", syscall(SYS_io_setup, 1, &(unsigned long){0}));
    TRY("mptcp", socket(AF_INET, SOCK_STREAM, 262));
    TRY("sctp", socket(AF_INET, SOCK_STREAM, 132));
    TRY("udplite", socket(AF_INET6, SOCK_DGRAM, 136));
    TRY("crypto-socket", socket(38 /* AF_ALG */, SOCK_SEQPACKET, 0));
    TRY("line-discipline", ioctl(0, 0x5423 /* TIOCSETD */, &(int){2}));
    /* Really made, this call would refuse the descriptor. */
    TRY("syncfs-pretended", syscall(SYS_syncfs, -1));
    TRY("core-limit-kept", ({
          struct rlimit limit;
          setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
          getrlimit(RLIMIT_CORE, &limit) < 0 ? -1 : limit.rlim_cur == 1 && limit.rlim_max == 1 ? 0 : -1;
        }));
    TRY("secret-memory", syscall(SYS_memfd_secret, 0));
    TRY("migrate-pages", syscall(SYS_migrate_pages, 0, 64, &(unsigned long){1}, &(unsigned long){1}));
    TRY("huge-file", syscall(SYS_memfd_create, "huge", 4 /* MFD_HUGETLB */));
    TRY("linger-pretended", setsockopt(socket(AF_INET, SOCK_STREAM, 0), 6, 8 /* TCP_LINGER2 */, "", 0));
    TRY("message-queue", syscall(SYS_mq_open, "alcove-probe", O_CREAT | O_RDWR, 0600, 0));
    TRY("pipe-size", ({
          int ends[2] = {-1, -1};
          pipe(ends) < 0 ? -1 : fcntl(ends[0], 1031 /* F_SETPIPE_SZ */, 1 << 17);
        }));
    TRY("tcp", socket(AF_INET, SOCK_STREAM, 6));
    TRY("udp", socket(AF_INET6, SOCK_DGRAM, 17));
    return 0;
  }
  TRY("ptrace-agent", ptrace(PTRACE_ATTACH, 1, 0, 0));
  TRY("seize-agent", ptrace(PTRACE_SEIZE, 1, 0, 0));
  TRY("agent-memory-read", read_memory_of(1));
  TRY("agent-mem", open_read("/proc/1/mem"));
  TRY("agent-environ", open_read("/proc/1/environ"));
  TRY("agent-maps", open_read("/proc/1/maps"));
  TRY("agent-root", open("/proc/1/root/.", O_RDONLY));
  TRY("agent-fd", open("/proc/1/fd/0", O_RDONLY));
  TRY("agent-syscall", open_read("/proc/1/syscall"));
  TRY("pidfd-getfd", ({
        int fd = (int)syscall(SYS_pidfd_open, 1, 0);
        fd < 0 ? fd : syscall(438 /* pidfd_getfd */, fd, 0, 0);
      }));
  TRY("unshare-user", unshare(CLONE_NEWUSER));
  TRY("unshare-mount", unshare(CLONE_NEWNS));
  TRY("unshare-net", unshare(CLONE_NEWNET));
  TRY("unshare-pid", unshare(CLONE_NEWPID));
  TRY("setns-agent", ({
        int fd = open("/proc/1/ns/mnt", O_RDONLY);
        fd < 0 ? fd : setns(fd, 0);
      }));
  TRY("mount-tmpfs", mount("none", "/tmp", "tmpfs", 0, NULL));
  TRY("mount-bind", mount("/tmp", "/.alcove", NULL, MS_BIND, NULL));
  TRY("mount-proc", mount("none", "/tmp", "proc", 0, NULL));
  TRY("umount-agent", umount2("/.alcove", MNT_DETACH));
  TRY("move-mount", syscall(429, -100, "/tmp", -100, "/.alcove", 0));
  TRY("fsopen", syscall(430, "tmpfs", 0));
  TRY("pivot-root", syscall(SYS_pivot_root, "/tmp", "/tmp"));
  TRY("chroot", chroot("/tmp"));
  TRY("mknod-disk", mknod("/tmp/disk", S_IFBLK | 0600, makedev(8, 0)));
  TRY("mknod-mem", mknod("/tmp/mem", S_IFCHR | 0600, makedev(1, 1)));
  TRY("open-by-handle", ({
        struct { unsigned bytes; int type; unsigned char data[8]; } handle = {8, 1, {2}};
        syscall(SYS_open_by_handle_at, AT_FDCWD, &handle, O_RDONLY);
      }));
  TRY("bpf", syscall(SYS_bpf, 0, NULL, 0));
  TRY("perf", syscall(SYS_perf_event_open, NULL, 0, -1, -1, 0));
  TRY("userfaultfd", syscall(SYS_userfaultfd, 0));
  TRY("keyctl", syscall(SYS_keyctl, 0, -3, 1));
  TRY("add-key", syscall(SYS_add_key, "user", "x", "y", 1, -3));
  TRY("io-uring", ({
        char parameters[120] = {0};
        syscall(425 /* io_uring_setup */, 1, parameters);
      }));
  TRY("init-module", syscall(SYS_init_module, NULL, 0, ""));
  TRY("finit-module", syscall(SYS_finit_module, -1, "", 0));
  TRY("kexec", syscall(SYS_kexec_load, 0, 0, NULL, 0));
  TRY("reboot", syscall(SYS_reboot, 0, 0, 0, NULL));
  TRY("swapon", syscall(SYS_swapon, "/tmp/x", 0));
  TRY("syslog", syscall(SYS_syslog, 3, NULL, 0));
  TRY("settime", syscall(SYS_clock_settime, 0, &(struct { long s, n; }){0, 0}));
  TRY("sethostname", sethostname("x", 1));
  TRY("setuid", ({
        int was_root = geteuid() == 0;
        was_root ? setuid(1) : setuid(0);
      }));
  TRY("setgroups", syscall(SYS_setgroups, 1, &(int){0}));
  TRY("raise-priority", setpriority(PRIO_PROCESS, 0, -10));
  TRY("raw-socket", socket(AF_INET, SOCK_RAW, 1));
  TRY("packet-socket", socket(AF_PACKET, SOCK_RAW, 0));
  TRY("core-pattern", open_write("/proc/sys/kernel/core_pattern"));
  TRY("sysrq", open_write("/proc/sysrq-trigger"));
  TRY("kcore", open_read("/proc/kcore"));
  TRY("cgroup-write", open_write("/sys/fs/cgroup/memory/memory.limit_in_bytes"));
  TRY("cgroup2-write", open_write("/sys/fs/cgroup/cgroup.procs"));
  TRY("host-disk", open("/dev/vda", O_RDONLY));
  TRY("dev-mem", open("/dev/mem", O_RDONLY));
  TRY("dev-kmsg", open("/dev/kmsg", O_RDONLY));
  if (argc > 1) TRY("host-abstract-socket", abstract_connect(argv[1]));
#if defined(__x86_64__)
  TRY("x32-mount", syscall(X32 + SYS_mount, "none", "/tmp", "tmpfs", 0, NULL));
  TRY("x32-unshare", syscall(X32 + SYS_unshare, CLONE_NEWUSER));
  TRY("x32-ptrace", syscall(X32 + 521, PTRACE_ATTACH, 1, 0, 0));
  TRY("x86-mount", call32(21, 0, 0));
  TRY("x86-unshare", call32(310, CLONE_NEWUSER, 0));
  TRY("x86-ptrace", call32(26, PTRACE_ATTACH, 1));
#endif
  return 0;
}
