//! Files that are made ahead, and filled later.

use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::path::PathBuf;

fn folder(name: &str) -> (PathBuf, File) {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
    fs::create_dir_all(&path).expect("a folder");
    let opened = File::open(&path).expect("the folder");
    (path, opened)
}

/// Whether blocks of the disk are the file's: where the file system waits with that, until what is written goes to the disk.
fn has_blocks(file: &File) -> bool {
    const FS_IOC_FIEMAP: libc::Ioctl = 0xc020_660bu32 as libc::Ioctl;
    const NOT_YET: u32 = 0x4;
    // A request for one extent, and room for it.
    #[repr(C)]
    #[derive(Default)]
    struct Map {
        start: u64,
        length: u64,
        flags: u32,
        mapped: u32,
        count: u32,
        reserved: u32,
        extent: [u64; 5],
        extent_flags: u32,
        extent_reserved: [u32; 3],
    }
    let mut map = Map { length: u64::MAX, count: 1, ..Map::default() };
    // SAFETY: the map lives through the call and has room for as many extents as it says.
    let result = unsafe { libc::ioctl(file.as_raw_fd(), FS_IOC_FIEMAP, &raw mut map) };
    result == 0 && map.mapped > 0 && map.extent_flags & NOT_YET == 0
}

#[test]
fn what_was_made_ahead_has_no_more_of_the_disk_once_it_is_filled_than_a_file_made_then() {
    let (path, dir) = folder("made-ahead");
    let written = |name: &str| {
        alcove_sys::write_file_atomically(dir.as_raw_fd(), name, &[b'x'; 900]).expect("written");
        has_blocks(&File::open(path.join(name)).expect("the file"))
    };
    let anew = written("anew");
    drop(alcove_sys::prepare_file(dir.as_raw_fd(), "ahead").expect("made"));
    let ahead = written("ahead");
    fs::remove_dir_all(&path).expect("removed");
    assert_eq!(ahead, anew);
}

#[test]
fn what_somebody_left_half_written_is_no_part_of_the_file() {
    let (path, dir) = folder("half-written");
    fs::write(path.join("record.new"), [b'y'; 5_000]).expect("left");
    alcove_sys::write_file_atomically(dir.as_raw_fd(), "record", b"whole").expect("written");
    let found = fs::read(path.join("record")).expect("the file");
    fs::remove_dir_all(&path).expect("removed");
    assert_eq!(found, b"whole");
}
