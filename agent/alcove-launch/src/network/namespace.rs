//! A network namespace for a sandbox that is being made, by a process that enters its user namespace for that: the sandbox's first process has
//! other things to do meanwhile, and nothing of it takes the kernel longer.

use std::cell::Cell;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use crate::sys;

struct Order {
    users: RawFd,
    owner: u32,
    /// Who waits for it.
    parent: libc::pid_t,
    /// A descriptor, or which error there was instead, below zero.
    made: Cell<i32>,
}

/// @param users the user namespace that it belongs to, and the user of the machine that this one belongs to.
/// @param all the processors that this process may use.
pub fn make((users, owner): (&OwnedFd, u32), all: Option<&sys::Processors>) -> io::Result<OwnedFd> {
    // SAFETY: no arguments.
    let parent = unsafe { libc::getpid() };
    let order = Order { users: users.as_raw_fd(), owner, parent, made: Cell::new(-libc::ECHILD) };
    // SAFETY: system calls are all that it makes.
    let ended = unsafe { sys::in_passing(enter_and_make, &order, all) };
    // It has closed the memory that it borrowed.
    // SAFETY: plain numbers.
    unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 1, 0, 0, 0) };
    match ended {
        // Where the ends of children are ignored: it has ended all the same.
        Err(error) if !sys::errno_is(&error, libc::ECHILD) => return Err(error),
        _ => {}
    }
    match order.made.get() {
        // SAFETY: it was opened for us in the table that we shared.
        made if made >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(made) }),
        error => Err(io::Error::from_raw_os_error(-error)),
    }
}

extern "C" fn enter_and_make(order: &Order) {
    let entered = enter(order).and_then(|()| {
        // SAFETY: plain numbers, and a C string.
        unsafe {
            sys::check(libc::unshare(libc::CLONE_NEWNET) as libc::c_long)?;
            let path = c"/proc/thread-self/ns/net".as_ptr();
            sys::check(libc::open(path, libc::O_RDONLY | libc::O_CLOEXEC) as libc::c_long)
        }
    });
    order.made.set(entered.map_or_else(|error| -error.raw_os_error().unwrap_or(libc::EIO), |fd| fd as i32));
}

fn enter(order: &Order) -> io::Result<()> {
    // A service in a container has no rights over it but those of its owner, for whom the kernel also counts it.
    sys::act_as(order.owner)?;
    // SAFETY: plain numbers, and a descriptor that is open.
    unsafe {
        // From here on the sandbox's own root would have rights over who has the launcher's memory.
        sys::check(libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0) as libc::c_long)?;
        sys::check(libc::setns(order.users, libc::CLONE_NEWUSER) as libc::c_long)?;
        // Now that its ids stay: it has all descriptors of who waits, whose end is seen by some of them.
        sys::set_death_signal(libc::SIGKILL)?;
        if libc::getppid() != order.parent {
            libc::_exit(1);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
    use std::os::unix::fs::MetadataExt;
    use std::process::{Child, Command, Stdio};

    use crate::sys;

    /// `_IO(0xb7, 1)`: a descriptor of the user namespace that a namespace belongs to.
    const NS_GET_USERNS: libc::c_ulong = 0xb701;

    fn inode(fd: &OwnedFd) -> u64 {
        std::fs::metadata(format!("/proc/self/fd/{}", fd.as_raw_fd())).expect("a namespace").ino()
    }

    /// A process in a user namespace of its own, which belongs to `owner`.
    fn apart(owner: &str) -> (Child, OwnedFd) {
        let script = "exec unshare --user sh -c 'echo; exec sleep 60'";
        let mut command = Command::new("setpriv");
        command.args(["--reuid", owner, "--regid", owner, "--clear-groups", "sh", "-c", script]);
        let mut child = command.stdout(Stdio::piped()).spawn().expect("setpriv");
        sys::read(child.stdout.as_ref().expect("its output").as_raw_fd(), &mut [0]).expect("a line");
        let users = std::fs::File::open(format!("/proc/{}/ns/user", child.id()));
        if users.is_err() {
            let _ = child.kill();
        }
        (child, users.expect("its namespace of users").into())
    }

    /// @returns of a process that has entered: whether others may look into it, and what it is sent when its parent ends.
    fn entered_as(users: &OwnedFd) -> (i32, i32) {
        // SAFETY: no arguments.
        let parent = unsafe { libc::getpid() };
        let (users, made) = (users.as_raw_fd(), std::cell::Cell::new(0));
        let order = super::Order { users, owner: 1_900_000_000, parent, made };
        let entering = sys::fork().expect("a process");
        if entering == 0 {
            let signal = super::enter(&order).and_then(|()| sys::death_signal()).unwrap_or(0);
            // SAFETY: plain numbers.
            unsafe { libc::_exit(libc::prctl(libc::PR_GET_DUMPABLE) << 6 | signal) };
        }
        let mut status = 0;
        // SAFETY: our own child.
        unsafe { libc::waitpid(entering, &mut status, 0) };
        (libc::WEXITSTATUS(status) >> 6, libc::WEXITSTATUS(status) & 63)
    }

    #[test]
    fn a_network_belongs_to_the_users_it_was_made_for_and_who_has_it_made_stays_who_it_is() {
        // SAFETY: no arguments.
        if unsafe { libc::geteuid() } != 0 {
            eprintln!("skipped: only root enters the namespaces of others");
            return;
        }
        let (mut child, users) = apart("1900000000");
        let entered = entered_as(&users);
        let machines = std::fs::File::open("/proc/self/ns/net").expect("the machine's").into();
        let made = super::make((&users, 1_900_000_000), sys::Processors::to_give_back().ok().as_ref());
        let foreign = super::make((&machines, 1_900_000_000), None);
        child.kill().expect("killed");
        child.wait().expect("its end");
        // Its memory, which is ours, is nobody's to look into but the machine's.
        assert_eq!(entered, (0, libc::SIGKILL));
        let made = made.expect("a network");
        assert_ne!(inode(&made), inode(&machines));
        // SAFETY: the descriptor returned is ours.
        let owner = unsafe { OwnedFd::from_raw_fd(libc::ioctl(made.as_raw_fd(), NS_GET_USERNS as _)) };
        assert_eq!(inode(&owner), inode(&users));
        // No namespace of users.
        assert_eq!(foreign.expect_err("a refusal").raw_os_error(), Some(libc::EINVAL));
        // SAFETY: no arguments.
        let (user, dumpable) = unsafe { (libc::geteuid(), libc::prctl(libc::PR_GET_DUMPABLE)) };
        assert_eq!((user, dumpable), (0, 1));
        let own: OwnedFd = std::fs::File::open("/proc/self/ns/net").expect("its own").into();
        assert_eq!(inode(&own), inode(&machines));
    }
}
