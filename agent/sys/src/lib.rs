//! Thin, checked wrappers around the system calls that the standard library does not have, or makes with system calls
//! that old path translators do not know (`statx` above all). Errors are the kernel's own.

mod descriptors;
mod etc;
pub mod held;
mod kernel;
mod machine;
mod network;
mod processors;
mod relocations;
mod vsock;

pub use descriptors::*;
pub use etc::*;
pub use kernel::*;
pub use machine::*;
pub use network::*;
pub use processors::*;
pub use relocations::*;
pub use vsock::*;
