//! The system calls a sandbox may not make, as seccomp filters: the launcher installs all refusals, the agent those that
//! an engine's own profile lacks.

mod bpf;
mod refusals;
mod socket_options;

pub use refusals::{install, install_asking, install_shared, install_shared_asking};
