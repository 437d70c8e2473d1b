//! `file.glob`: `*`, `?`, `[…]`, `{a,b}` and `**` over absolute paths.

use super::list::{MAX_DEPTH, names, open_directory};
use super::path;
use crate::sys;
use crate::workers::channel::{Channel, Served, Stop, refused};
use alcove_protocol::{ErrorCode, Event, FileGlob};
use std::collections::BTreeSet;
use std::os::fd::{AsRawFd, OwnedFd};

const MAX_PATHS: usize = 100_000;
const MAX_ALTERNATIVES: usize = 1_000;
const BATCH: usize = 1_000;
const MAX_NAMES: usize = 1_000_000;
/// Entries looked at before a pattern is given up as too wide.
const MAX_VISITED: usize = 4_000_000;

/// Expands `{a,b}`, nested ones too. A brace without its partner or without a comma stands for itself.
fn alternatives(pattern: &[u8], out: &mut Vec<Vec<u8>>) -> Served {
    if out.len() > MAX_ALTERNATIVES {
        return Err(refused(
            ErrorCode::BadRequest,
            format!("the pattern has more than {MAX_ALTERNATIVES} alternatives"),
        ));
    }
    let Some((open, close, commas)) = first_braces(pattern) else {
        out.push(pattern.to_vec());
        return Ok(());
    };
    let mut from = open + 1;
    for until in commas.into_iter().chain([close]) {
        let expanded = [&pattern[..open], &pattern[from..until], &pattern[close + 1..]].concat();
        alternatives(&expanded, out)?;
        from = until + 1;
    }
    Ok(())
}

fn first_braces(pattern: &[u8]) -> Option<(usize, usize, Vec<usize>)> {
    let mut at = 0;
    while at < pattern.len() {
        match pattern[at] {
            b'\\' => at += 1,
            b'{' => {
                let (mut depth, mut commas, mut inner) = (0, Vec::new(), at);
                while inner < pattern.len() {
                    match pattern[inner] {
                        b'\\' => inner += 1,
                        b'{' => depth += 1,
                        b'}' => {
                            depth -= 1;
                            if depth == 0 {
                                break;
                            }
                        }
                        b',' if depth == 1 => commas.push(inner),
                        _ => {}
                    }
                    inner += 1;
                }
                if inner < pattern.len() && !commas.is_empty() {
                    return Some((at, inner, commas));
                }
            }
            _ => {}
        }
        at += 1;
    }
    None
}

/// Whether a name matches one component of a pattern. A leading dot has to be written out.
fn matches(pattern: &[u8], name: &[u8]) -> bool {
    if name.first() == Some(&b'.') && pattern.first() != Some(&b'.') {
        return false;
    }
    let (mut p, mut n) = (0, 0);
    // Where to go on when what follows the last star does not fit.
    let mut retry: Option<(usize, usize)> = None;
    loop {
        if p == pattern.len() && n == name.len() {
            return true;
        }
        if pattern.get(p) == Some(&b'*') {
            retry = Some((p + 1, n));
            p += 1;
            continue;
        }
        match one(&pattern[p.min(pattern.len())..], &name[n..]) {
            Some((in_pattern, in_name)) => {
                p += in_pattern;
                n += in_name;
            }
            None => match retry {
                Some((after, from)) if from < name.len() => {
                    let step = character(&name[from..]).1;
                    retry = Some((after, from + step));
                    p = after;
                    n = from + step;
                }
                _ => return false,
            },
        }
    }
}

/// The first character of a text and its length in bytes; a byte that is not UTF-8 is a character of its own.
fn character(bytes: &[u8]) -> (u32, usize) {
    for length in 1..=bytes.len().min(4) {
        if let Some(found) = std::str::from_utf8(&bytes[..length]).ok().and_then(|text| text.chars().next()) {
            return (found as u32, length);
        }
    }
    (0x11_0000 + u32::from(bytes[0]), 1)
}

/// Matches one character; how much of the pattern and of the name that takes.
fn one(pattern: &[u8], name: &[u8]) -> Option<(usize, usize)> {
    let (&first, _) = pattern.split_first()?;
    if name.is_empty() {
        return None;
    }
    let (wanted, length) = character(name);
    match first {
        b'?' => Some((1, length)),
        b'[' => match class(pattern, wanted) {
            Some((true, used)) => Some((used, length)),
            Some((false, _)) => None,
            // Without its end, a bracket stands for itself.
            None => (name[0] == b'[').then_some((1, 1)),
        },
        b'\\' if pattern.len() > 1 => {
            let (literal, used) = character(&pattern[1..]);
            (literal == wanted).then_some((1 + used, length))
        }
        _ => {
            let (literal, used) = character(pattern);
            (literal == wanted).then_some((used, length))
        }
    }
}

fn class(pattern: &[u8], wanted: u32) -> Option<(bool, usize)> {
    let mut at = 1;
    let negated = matches!(pattern.get(at), Some(b'!' | b'^'));
    if negated {
        at += 1;
    }
    let first = at;
    let mut found = false;
    while at < pattern.len() {
        if pattern[at] == b']' && at > first {
            return Some((found != negated, at + 1));
        }
        if pattern[at] == b'\\' && at + 1 < pattern.len() {
            at += 1;
        }
        let (low, used) = character(&pattern[at..]);
        at += used;
        let mut high = low;
        if pattern.get(at) == Some(&b'-') && pattern.get(at + 1).is_some_and(|next| *next != b']') {
            let (end, used) = character(&pattern[at + 1..]);
            high = end;
            at += 1 + used;
        }
        found |= (low..=high).contains(&wanted);
    }
    None
}

fn is_plain(component: &[u8]) -> bool {
    !component.iter().any(|byte| b"*?[\\".contains(byte))
}

struct Search {
    found: BTreeSet<Vec<u8>>,
    visited: usize,
}

impl Search {
    fn visit(&mut self) -> Served {
        self.visited += 1;
        if self.visited > MAX_VISITED || self.found.len() > MAX_PATHS {
            return Err(refused(
                ErrorCode::TooLarge,
                format!("the pattern finds more than {MAX_PATHS} paths, or looks at too many"),
            ));
        }
        Ok(())
    }

    fn walk(&mut self, dir: &OwnedFd, path: &[u8], rest: &[Vec<u8>], depth: u32) -> Served {
        let Some((component, after)) = rest.split_first() else { return Ok(()) };
        if depth > MAX_DEPTH {
            return Ok(());
        }
        if component == b"**" {
            if after.is_empty() {
                return self.everything(dir, path, depth);
            }
            self.walk(dir, path, after, depth)?;
            return self.each(dir, |search, name, is_directory| {
                if is_directory && name.first() != Some(&b'.') {
                    if let Some((below, inner)) = enter(dir, path, name, false) {
                        search.walk(&below, &inner, rest, depth + 1)?;
                    }
                }
                Ok(())
            });
        }
        if is_plain(component) || component == b".." {
            return self.step(dir, path, component, after, depth);
        }
        self.each(
            dir,
            |search, name, _| {
                if matches(component, name) { search.step(dir, path, name, after, depth) } else { Ok(()) }
            },
        )
    }

    /// One name: a result when nothing follows, else a directory to go on in.
    fn step(&mut self, dir: &OwnedFd, path: &[u8], name: &[u8], after: &[Vec<u8>], depth: u32) -> Served {
        self.visit()?;
        if after.is_empty() {
            let exists = sys::c_string(name)
                .and_then(|name| sys::stat_at(dir.as_raw_fd(), &name, libc::AT_SYMLINK_NOFOLLOW))
                .is_ok();
            if exists {
                self.found.insert(join(path, name));
            }
            return Ok(());
        }
        match enter(dir, path, name, true) {
            Some((below, inner)) => self.walk(&below, &inner, after, depth + 1),
            None => Ok(()),
        }
    }

    fn everything(&mut self, dir: &OwnedFd, path: &[u8], depth: u32) -> Served {
        self.each(dir, |search, name, is_directory| {
            if name.first() == Some(&b'.') {
                return Ok(());
            }
            search.found.insert(join(path, name));
            if is_directory && depth < MAX_DEPTH {
                if let Some((below, inner)) = enter(dir, path, name, false) {
                    search.everything(&below, &inner, depth + 1)?;
                }
            }
            Ok(())
        })
    }

    fn each(&mut self, dir: &OwnedFd, mut visit: impl FnMut(&mut Self, &[u8], bool) -> Served) -> Served {
        // What cannot be read holds no matches.
        let Ok(reader) = open_directory(dir.as_raw_fd(), c".") else { return Ok(()) };
        for name in names(reader, MAX_NAMES).unwrap_or_default() {
            self.visit()?;
            let is_directory = sys::stat_at(dir.as_raw_fd(), &name, libc::AT_SYMLINK_NOFOLLOW)
                .is_ok_and(|stat| stat.st_mode & libc::S_IFMT == libc::S_IFDIR);
            visit(self, name.as_bytes(), is_directory)?;
        }
        Ok(())
    }
}

fn join(path: &[u8], name: &[u8]) -> Vec<u8> {
    [path, if path.ends_with(b"/") { b"" } else { b"/" }, name].concat()
}

fn enter(dir: &OwnedFd, path: &[u8], name: &[u8], through_links: bool) -> Option<(OwnedFd, Vec<u8>)> {
    let c_name = sys::c_string(name).ok()?;
    let flags = libc::O_PATH | libc::O_DIRECTORY | if through_links { 0 } else { libc::O_NOFOLLOW };
    let below = path::open_at(dir.as_raw_fd(), &c_name, flags).ok()?;
    Some((below, join(path, name)))
}

pub fn glob(channel: &mut Channel, request: &FileGlob) -> Served {
    let mut patterns = Vec::new();
    alternatives(request.pattern.as_bytes(), &mut patterns)?;
    let mut search = Search { found: BTreeSet::new(), visited: 0 };
    for pattern in patterns {
        let parsed = path::parse(&String::from_utf8_lossy(&pattern))?;
        if parsed.is_root() {
            search.found.insert(b"/".to_vec());
            continue;
        }
        let root = path::Path { components: Vec::new() };
        let root = path::open(&root, libc::O_PATH | libc::O_DIRECTORY)?;
        let mut components = parsed.components;
        // Neighbouring ** mean no more than one.
        components.dedup_by(|a, b| a == b"**" && b == b"**");
        search.walk(&root, b"/", &components, 0)?;
    }
    let found: Vec<String> = search.found.iter().map(|path| String::from_utf8_lossy(path).into_owned()).collect();
    for batch in found.chunks(BATCH) {
        channel.event(&Event::Paths { paths: batch.to_vec() }).map_err(|_| Stop::Gone)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expand(pattern: &str) -> Vec<String> {
        let mut out = Vec::new();
        assert!(alternatives(pattern.as_bytes(), &mut out).is_ok());
        out.into_iter().map(|one| String::from_utf8_lossy(&one).into_owned()).collect()
    }

    #[test]
    fn braces_expand_nested_and_stand_for_themselves_when_incomplete() {
        assert_eq!(expand("/a{b,c{d,e}}f"), ["/abf", "/acdf", "/acef"]);
        assert_eq!(expand("/a{b}c{,x}"), ["/a{b}c", "/a{b}cx"]);
        assert_eq!(expand("/a{b"), ["/a{b"]);
    }

    #[test]
    fn a_component_matches_whole_names() {
        for (pattern, name, expected) in [
            ("*.txt", "a.txt", true),
            ("*.txt", "a.txt.bak", false),
            ("a*b*c", "axxbyyc", true),
            ("?", "é", true),
            ("??", "é", false),
            ("[a-c]x", "bx", true),
            ("[!a-c]x", "bx", false),
            ("[]]", "]", true),
            ("[", "[", true),
            ("*", ".hidden", false),
            (".*", ".hidden", true),
            ("\\*", "*", true),
            ("\\*", "x", false),
            ("**", "ab", true),
            ("a*", "a", true),
            ("", "", true),
        ] {
            assert_eq!(matches(pattern.as_bytes(), name.as_bytes()), expected, "{pattern} {name}");
        }
    }

    #[test]
    fn many_stars_take_no_exponential_time() {
        assert!(!matches(&b"*a".repeat(60), &b"a".repeat(200).into_iter().chain(*b"b").collect::<Vec<u8>>()));
    }
}
