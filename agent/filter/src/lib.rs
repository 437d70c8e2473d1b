//! The system calls a sandbox may not make, as seccomp filters: the launcher installs all refusals, the agent those that
//! an engine's own profile lacks. And those of the relay of a sandbox's network.

mod bpf;
mod carrying;
mod refusals;
mod shared_answers;
mod socket_options;

pub use carrying::install_carrying;
pub use refusals::{install, install_asking, install_shared, install_shared_asking, make_ready};
