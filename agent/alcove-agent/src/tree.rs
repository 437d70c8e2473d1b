//! Process trees, found by walking `/proc` from a process to its children. Every command descends from its monitor,
//! which is a subreaper, so that sessions of their own and double forks hide nothing.

use crate::sys;
use std::collections::{HashMap, HashSet};
use std::ffi::CStr;

struct Process {
    pid: i32,
    parent: i32,
    state: u8,
}

/// Rounds of stopping before the killing starts all the same.
const STOP_ROUNDS: usize = 12;

/// The fields after the command's name, which may hold spaces and parentheses itself.
fn parse_stat(text: &[u8]) -> Option<(u8, i32)> {
    let after = text.iter().rposition(|byte| *byte == b')')?;
    let mut fields = text[after + 1..].split(|byte| *byte == b' ').filter(|field| !field.is_empty());
    let state = *fields.next()?.first()?;
    let parent = std::str::from_utf8(fields.next()?).ok()?.parse().ok()?;
    Some((state, parent))
}

fn processes() -> Vec<Process> {
    let mut found = Vec::new();
    // SAFETY: the directory stream is used and closed here only.
    unsafe {
        let directory = libc::opendir(c"/proc".as_ptr());
        if directory.is_null() {
            return found;
        }
        loop {
            let entry = libc::readdir64(directory);
            if entry.is_null() {
                break;
            }
            let name = CStr::from_ptr((*entry).d_name.as_ptr());
            let Some(pid) = name.to_str().ok().and_then(|text| text.parse::<i32>().ok()) else { continue };
            let Ok(path) = sys::c_string(format!("/proc/{pid}/stat").as_bytes()) else { continue };
            let Ok(text) = sys::read_small(&path, 4096) else { continue };
            if let Some((state, parent)) = parse_stat(&text) {
                found.push(Process { pid, parent, state });
            }
        }
        libc::closedir(directory);
    }
    found
}

/// Everything that descends from one of `roots` (which are not part of the answer), without zombies; never `except`
/// nor what descends from it.
fn descendants(all: &[Process], roots: &[i32], except: &HashSet<i32>) -> Vec<(i32, u8)> {
    let mut children: HashMap<i32, Vec<&Process>> = HashMap::new();
    for process in all {
        children.entry(process.parent).or_default().push(process);
    }
    let mut found = Vec::new();
    let mut queue = roots.to_vec();
    let mut seen: HashSet<i32> = roots.iter().copied().collect();
    while let Some(pid) = queue.pop() {
        for child in children.get(&pid).into_iter().flatten() {
            if except.contains(&child.pid) || !seen.insert(child.pid) {
                continue;
            }
            queue.push(child.pid);
            if child.state != b'Z' && child.state != b'X' {
                found.push((child.pid, child.state));
            }
        }
    }
    found
}

fn signal(pid: i32, signal: i32) {
    // SAFETY: plain kill; a process that is gone already is no error here.
    unsafe { libc::kill(pid, signal) };
}

/// One sweep: stops everything below `roots` until nothing new appears, then kills all of it. Stopped processes cannot
/// fork, so nothing escapes between the look and the kill. Returns how many were found; a caller sweeps again until
/// none is.
pub fn sweep(roots: &[i32], except: &HashSet<i32>) -> usize {
    let mut stopped: HashSet<i32> = HashSet::new();
    for _ in 0..STOP_ROUNDS {
        let found = descendants(&processes(), roots, except);
        let settled = found.iter().all(|(pid, state)| stopped.contains(pid) && matches!(state, b'T' | b't'));
        for (pid, _) in &found {
            if stopped.insert(*pid) {
                signal(*pid, libc::SIGSTOP);
            }
        }
        if settled {
            break;
        }
    }
    for pid in &stopped {
        signal(*pid, libc::SIGKILL);
    }
    stopped.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_spaces_and_parentheses_hides_nothing() {
        assert_eq!(parse_stat(b"17 (a) S 4 (b) R 9 17 17 0"), Some((b'R', 9)));
        assert_eq!(parse_stat(b"garbage"), None);
    }

    #[test]
    fn descendants_leave_out_zombies_and_other_trees() {
        let process = |pid, parent, state| Process { pid, parent, state };
        let all =
            [process(2, 1, b'S'), process(3, 2, b'S'), process(4, 3, b'Z'), process(5, 4, b'R'), process(9, 1, b'S')];
        let mut found: Vec<i32> = descendants(&all, &[2], &HashSet::new()).iter().map(|(pid, _)| *pid).collect();
        found.sort_unstable();
        assert_eq!(found, [3, 5]);
        assert_eq!(descendants(&all, &[1], &HashSet::from([2])), [(9, b'S')]);
    }
}
