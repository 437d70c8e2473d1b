//! Process trees, found by walking through `/proc`. Every command descends from its monitor, which is a subreaper, so
//! that sessions of their own and double forks hide nothing.

use crate::sys;
use std::collections::{HashMap, HashSet};
use std::ffi::CStr;

pub struct Process {
    pid: i32,
    parent: i32,
    /// Runs, or can again. A zombie does not, unless only its first thread has ended.
    alive: bool,
    /// Processor time of its own, and that of children it has waited for, in ticks.
    own_ticks: u64,
    waited_ticks: u64,
}

/// How many fields of `stat` lie between the parent and the processor times, and between these and the number of threads.
const BETWEEN_PARENT_AND_TIMES: usize = 9;
const BETWEEN_TIMES_AND_THREADS: usize = 2;

/// The fields after the command's name, which may hold spaces and parentheses itself.
fn parse_stat(pid: i32, text: &[u8]) -> Option<Process> {
    let after = text.iter().rposition(|byte| *byte == b')')?;
    let mut fields = text[after + 1..].split(|byte| byte.is_ascii_whitespace()).filter(|field| !field.is_empty());
    let state = *fields.next()?.first()?;
    let mut number = |skip| std::str::from_utf8(fields.nth(skip)?).ok()?.parse::<i64>().ok();
    let parent = i32::try_from(number(0)?).ok()?;
    let mut ticks = |skip| number(skip).and_then(|ticks| u64::try_from(ticks).ok()).unwrap_or(0);
    let own_ticks = ticks(BETWEEN_PARENT_AND_TIMES) + ticks(0);
    let waited_ticks = ticks(0) + ticks(0);
    // The state is the first thread's, which stays as a zombie until the others have ended.
    let alive = match state {
        b'X' | b'x' => false,
        b'Z' => number(BETWEEN_TIMES_AND_THREADS).is_some_and(|threads| threads > 1),
        _ => true,
    };
    Some(Process { pid, parent, alive, own_ticks, waited_ticks })
}

/// A walk through `/proc`, in steps, so that many processes cost nobody a long wait.
pub struct Walk {
    directory: *mut libc::DIR,
    found: Vec<Process>,
}

impl Walk {
    pub fn begin() -> Walk {
        // SAFETY: the stream belongs to this walk alone.
        let directory = unsafe { libc::opendir(c"/proc".as_ptr()) };
        Walk { directory, found: Vec::new() }
    }

    /// Looks at up to `limit` further processes; false when there was none left.
    pub fn step(&mut self, limit: usize) -> bool {
        if self.directory.is_null() {
            return false;
        }
        let mut looked = 0;
        while looked < limit {
            // SAFETY: the stream is open; the entry is used before the next is read.
            let name = unsafe {
                let entry = libc::readdir64(self.directory);
                if entry.is_null() {
                    return false;
                }
                CStr::from_ptr((*entry).d_name.as_ptr())
            };
            let Some(pid) = name.to_str().ok().and_then(|text| text.parse::<i32>().ok()) else { continue };
            let Ok(path) = sys::c_string(format!("/proc/{pid}/stat").as_bytes()) else { continue };
            looked += 1;
            let Ok(text) = sys::read_small(&path, 4096) else { continue };
            self.found.extend(parse_stat(pid, &text));
        }
        true
    }

    /// What was found.
    pub fn finish(mut self) -> Vec<Process> {
        std::mem::take(&mut self.found)
    }
}

impl Drop for Walk {
    fn drop(&mut self) {
        if !self.directory.is_null() {
            // SAFETY: opened by `begin`, closed once.
            unsafe { libc::closedir(self.directory) };
        }
    }
}

/// One whole walk.
pub fn processes() -> Vec<Process> {
    let mut walk = Walk::begin();
    while walk.step(usize::MAX) {}
    walk.finish()
}

/// Everything alive that descends from one of `roots` (which are not part of the answer); never `except`, nor what
/// descends from it, unless it is a root itself.
pub fn descendants(all: &[Process], roots: &[i32], except: &HashSet<i32>) -> Vec<i32> {
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
            if child.alive {
                found.push(child.pid);
            }
        }
    }
    found
}

/// Processor time of everything that descends from `root`, and of what it has waited for; zombies count, their time is
/// nobody else's yet.
pub fn ticks_below(all: &[Process], root: i32) -> u64 {
    let mut children: HashMap<i32, Vec<&Process>> = HashMap::new();
    for process in all {
        children.entry(process.parent).or_default().push(process);
    }
    let (mut ticks, mut queue, mut seen) = (0, vec![root], HashSet::from([root]));
    while let Some(pid) = queue.pop() {
        for child in children.get(&pid).into_iter().flatten().filter(|child| seen.insert(child.pid)) {
            ticks += child.own_ticks + child.waited_ticks;
            queue.push(child.pid);
        }
    }
    ticks
}

/// Processor time of the children that a process has waited for.
pub fn ticks_of_children(pid: i32) -> u64 {
    let stat = sys::c_string(format!("/proc/{pid}/stat").as_bytes()).and_then(|path| sys::read_small(&path, 4096));
    stat.ok().and_then(|text| parse_stat(pid, &text)).map_or(0, |process| process.waited_ticks)
}

/// Whether a process is dead, or about to be, and its tracer has not been told, or does not let it go on.
pub fn is_kept(pid: i32) -> bool {
    let status = sys::c_string(format!("/proc/{pid}/status").as_bytes()).and_then(|path| sys::read_small(&path, 4096));
    let status = status.unwrap_or_default();
    let status = String::from_utf8_lossy(&status);
    let value = |name| status.lines().find_map(|line| line.strip_prefix(name)).map_or("", str::trim);
    value("State:").starts_with(['Z', 't']) && !matches!(value("TracerPid:"), "" | "0")
}

pub fn milliseconds(ticks: u64) -> u64 {
    // SAFETY: plain question.
    let per_second = u64::try_from(unsafe { libc::sysconf(libc::_SC_CLK_TCK) }).unwrap_or(100).max(1);
    ticks * 1000 / per_second
}

pub fn signal(pid: i32, signal: i32) {
    // SAFETY: plain kill; a process that is gone already is no error here.
    unsafe { libc::kill(pid, signal) };
}

/// Kills everything below `root`, for a caller that has nothing else to do any more and repeats it until none is found.
/// Returns how many were found.
pub fn kill_all_below(root: i32) -> usize {
    let none = HashSet::new();
    for pid in descendants(&processes(), &[root], &none) {
        signal(pid, libc::SIGSTOP);
    }
    let found = descendants(&processes(), &[root], &none);
    for pid in &found {
        signal(*pid, libc::SIGKILL);
    }
    found.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_spaces_and_parentheses_hides_nothing() {
        let process = parse_stat(17, b"17 (a) S 4 (b) R 9 17 17 0").expect("a process");
        assert_eq!((process.pid, process.parent, process.alive), (17, 9, true));
        assert!(parse_stat(1, b"garbage").is_none());
    }

    #[test]
    fn a_zombie_with_threads_left_is_alive() {
        let stat = |state, threads| format!("7 (x) {state} 1 7 7 0 -1 0 0 0 0 0 0 0 0 0 20 0 {threads} 0 123\n");
        let alive = |state, threads| parse_stat(7, stat(state, threads).as_bytes()).expect("a process").alive;
        let times = parse_stat(7, b"7 (x) S 1 7 7 0 -1 0 0 0 0 0 3 4 50 60 20 0 1 0 123\n").expect("a process");
        assert_eq!((times.own_ticks, times.waited_ticks), (7, 110));
        assert!(!alive("Z", 1));
        assert!(alive("Z", 2));
        assert!(alive("S", 1));
        assert!(!alive("X", 0));
    }

    #[test]
    fn descendants_leave_out_the_dead_and_other_trees() {
        let process = |pid, parent, alive| Process { pid, parent, alive, own_ticks: 1, waited_ticks: 10 };
        let all =
            [process(2, 1, true), process(3, 2, true), process(4, 3, false), process(5, 4, true), process(9, 1, true)];
        let mut found = descendants(&all, &[2], &HashSet::new());
        found.sort_unstable();
        assert_eq!(found, [3, 5]);
        assert_eq!(descendants(&all, &[1], &HashSet::from([2])), [9]);
        let mut found = descendants(&all, &[1, 2], &HashSet::from([2]));
        found.sort_unstable();
        assert_eq!(found, [3, 5, 9]);
        assert_eq!((ticks_below(&all, 2), ticks_below(&all, 9)), (33, 0));
    }
}
