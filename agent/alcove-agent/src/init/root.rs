//! The root of a machine: the image, which many share and nobody may write to, under a layer that is the machine's own.

use super::at;
use crate::sys;
use std::fs::{create_dir, create_dir_all};
use std::io::ErrorKind;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

/// The agent's own folder, the only one that every image has been given.
const WORKSHOP: &str = "/.alcove";
/// Drivers may find their devices a little after the first process has started.
const PATIENCE: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(5);

/// Mounts `device`, of /dev, as the layer over the present root, and makes both together the root.
pub fn replace(device: &str) -> Result<(), String> {
    // Nothing of the image can be relied on, and it is read-only: the places to mount at are made in memory.
    sys::mount("alcove", WORKSHOP, "tmpfs", 0, "size=64k,nr_inodes=16,mode=700").map_err(at("mount", WORKSHOP))?;
    let place = |name: &str| format!("{WORKSHOP}/{name}");
    for name in ["dev", "layer", "root"] {
        create_dir(place(name)).map_err(at("make", name))?;
    }
    sys::mount("dev", &place("dev"), "devtmpfs", libc::MS_NOSUID, "").map_err(at("mount", "devtmpfs"))?;
    take_console(&place("dev/console"));
    mount_layer(&place(&format!("dev/{device}")), &place("layer")).map_err(at("layer", &format!("/dev/{device}")))?;
    let (upper, work) = (place("layer/upper"), place("layer/work"));
    for path in [&upper, &work] {
        create_dir_all(path).map_err(at("layer", path))?;
    }
    let options = format!("lowerdir=/,upperdir={upper},workdir={work}");
    sys::mount("overlay", &place("root"), "overlay", 0, &options).map_err(at("mount", "overlay"))?;
    sys::replace_root(&place("root")).map_err(at("root", &place("root")))
}

/// The kernel may have had none to give to its first process.
fn take_console(path: &str) {
    let Ok(path) = sys::c_string(path.as_bytes()) else { return };
    if let Ok(console) = sys::open(&path, libc::O_RDWR | libc::O_NOCTTY | libc::O_NONBLOCK, 0) {
        for target in libc::STDIN_FILENO..=libc::STDERR_FILENO {
            // SAFETY: plain numbers; the copies stay open after this descriptor.
            unsafe { libc::dup2(console.as_raw_fd(), target) };
        }
        if console.as_raw_fd() <= libc::STDERR_FILENO {
            // It is one of them itself.
            std::mem::forget(console);
        }
    }
}

fn mount_layer(device: &str, place: &str) -> std::io::Result<()> {
    let until = Instant::now() + PATIENCE;
    loop {
        match sys::mount(device, place, "ext4", libc::MS_NOATIME, "") {
            Err(error) if error.kind() == ErrorKind::NotFound && Instant::now() < until => std::thread::sleep(PAUSE),
            result => return result,
        }
    }
}
