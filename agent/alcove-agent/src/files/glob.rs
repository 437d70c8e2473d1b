//! `file.glob`: `*`, `?`, `[…]`, `{a,b}` and `**` over absolute paths.

use super::list::{BATCH_BYTES, Held, MAX_ANSWER, names};
use super::path::{self, failed};
use super::walk::{Trail, join};
use crate::sys;
use crate::workers::channel::{Channel, Served, Stop, refused};
use alcove_protocol::{ErrorCode, Event, FileGlob};
use std::ffi::{CStr, CString};
use std::io::Error;
use std::os::fd::RawFd;

const MAX_PATHS: usize = 100_000;
const MAX_ALTERNATIVES: usize = 1_000;
const BATCH: usize = 1_000;
/// Comparisons of a name with a component before a pattern is given up as too wide, for 4,000,000 names and a simple pattern.
const MAX_STEPS: usize = 24_000_000;
/// What a name costs without them: it is read from its directory.
const NAME_STEPS: usize = 4;
/// After so many it is looked whether the client is still there: who finds nothing sends nothing.
const STEPS_ALONE: usize = 4_096;

/// Expands `{a,b}`, nested ones too. A brace without its partner or without a comma stands for itself.
fn alternatives(pattern: &[u8]) -> Result<Vec<Vec<u8>>, Stop> {
    let (mut left, mut expanded) = (vec![pattern.to_vec()], Vec::new());
    while let Some(pattern) = left.pop() {
        let Some((open, close, commas)) = first_braces(&pattern) else {
            expanded.push(pattern);
            continue;
        };
        let ends: Vec<usize> = commas.into_iter().chain([close]).collect();
        if left.len() + expanded.len() + ends.len() > MAX_ALTERNATIVES {
            return Err(refused(
                ErrorCode::BadRequest,
                format!("the pattern has more than {MAX_ALTERNATIVES} alternatives"),
            ));
        }
        for (index, until) in ends.iter().enumerate().rev() {
            let from = if index == 0 { open } else { ends[index - 1] } + 1;
            left.push([&pattern[..open], &pattern[from..*until], &pattern[close + 1..]].concat());
        }
    }
    Ok(expanded)
}

/// The first brace that has a partner and a comma of its own: both ends, and the commas. One pass, whatever the pattern.
fn first_braces(pattern: &[u8]) -> Option<(usize, usize, Vec<usize>)> {
    let mut opened: Vec<(usize, Vec<usize>)> = Vec::new();
    let mut first: Option<(usize, usize, Vec<usize>)> = None;
    let mut at = 0;
    while at < pattern.len() {
        match pattern[at] {
            b'\\' => at += 1,
            b'{' => opened.push((at, Vec::new())),
            b',' => {
                if let Some((_, commas)) = opened.last_mut() {
                    commas.push(at);
                }
            }
            b'}' => {
                if let Some((open, commas)) = opened.pop() {
                    if !commas.is_empty() && first.as_ref().is_none_or(|(before, ..)| open < *before) {
                        first = Some((open, at, commas));
                    }
                }
            }
            _ => {}
        }
        at += 1;
    }
    first
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

/// One component of an alternative of the pattern; the next one follows it.
struct Component {
    text: Vec<u8>,
    /// It names one file, whatever the directory holds.
    plain: bool,
    /// Of its alternative.
    last: bool,
}

impl Component {
    fn new(text: Vec<u8>, last: bool) -> Self {
        let plain = is_plain(&text) || text == b"..";
        Self { text, plain, last }
    }
}

struct Search<'a> {
    /// The components of all alternatives, one after the other: the tree is walked once for all of them, and no path is
    /// found twice.
    pattern: &'a [Component],
    /// Where each alternative begins.
    starts: Open,
    found: Found<'a>,
    steps: usize,
    /// Of them, when it was last looked for the client.
    looked: usize,
}

/// Sends paths as they are found.
struct Found<'a> {
    channel: &'a mut Channel,
    batch: Vec<String>,
    batch_bytes: usize,
    total: usize,
    total_bytes: usize,
}

impl Found<'_> {
    fn add(&mut self, path: &[u8]) -> Served {
        self.total += 1;
        self.total_bytes += path.len();
        if self.total > MAX_PATHS || self.total_bytes > MAX_ANSWER {
            return Err(too_wide());
        }
        self.batch.push(String::from_utf8_lossy(path).into_owned());
        self.batch_bytes += path.len();
        if self.batch.len() == BATCH || self.batch_bytes > BATCH_BYTES { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> Served {
        self.batch_bytes = 0;
        match std::mem::take(&mut self.batch) {
            paths if paths.is_empty() => Ok(()),
            paths => self.channel.event(&Event::Paths { paths }).map_err(|_| Stop::Gone),
        }
    }
}

/// Which components of the pattern the names of a directory are held against: one directory is read once, however many
/// ways the pattern has to reach it.
type Open = Vec<usize>;

/// A directory on the way, and the names of it that are still to be looked at.
struct Level {
    open: Open,
    names: Vec<CString>,
    held: Held,
    /// The last name read, when the directory has more after it.
    more: Option<CString>,
    /// Length of its path.
    path: usize,
}

impl Search<'_> {
    fn is_deep(&self, at: usize) -> bool {
        self.pattern[at].text == b"**"
    }

    /// `**` also stands for no directory at all.
    fn closed(&self, mut open: Open) -> Open {
        let mut index = 0;
        while index < open.len() {
            let at = open[index];
            if self.is_deep(at) && !self.pattern[at].last {
                open.push(at + 1);
            }
            index += 1;
        }
        open.sort_unstable();
        open.dedup();
        open
    }

    fn is_plain(&self, at: usize) -> bool {
        self.pattern[at].plain
    }

    /// What is to be looked at in the directory that the trail has come to.
    fn level(&mut self, trail: &Trail, open: Open, path: usize) -> Result<Level, Stop> {
        let open = self.closed(open);
        let mut level = Level { open, names: Vec::new(), held: Held::default(), more: None, path };
        if !level.open.iter().all(|at| self.is_plain(*at)) {
            self.read(trail, &mut level, None);
        }
        for at in level.open.iter().filter(|at| self.is_plain(**at)) {
            level.names.push(path::c_string(&self.pattern[*at].text)?);
        }
        level.names.sort_unstable();
        level.names.dedup();
        level.names.reverse();
        Ok(level)
    }

    /// What cannot be read holds no matches but those that need no reading.
    fn read(&self, trail: &Trail, level: &mut Level, after: Option<&CStr>) {
        level.held = Held::default();
        if let Ok(read) = names(trail.dir(), after) {
            (level.names, level.held, level.more) = (read.names, read.held, read.more);
        }
    }

    /// The names that there was no room for before.
    fn read_on(&self, trail: &Trail, level: &mut Level, last: &CStr) {
        self.read(trail, level, Some(last));
        // What is named in the pattern was looked at first.
        let plain: Vec<&[u8]> =
            level.open.iter().filter(|at| self.is_plain(**at)).map(|at| &self.pattern[*at].text[..]).collect();
        level.names.retain(|name| !plain.contains(&name.to_bytes()));
        level.names.reverse();
    }

    /// Holds a name against the pattern. What is open below it, and whether a symlink is followed to get there.
    fn look(&mut self, dir: RawFd, above: &[u8], name: &CStr, open: &[usize]) -> Result<Option<(Open, bool)>, Stop> {
        self.steps += NAME_STEPS + open.len();
        if self.steps > MAX_STEPS {
            return Err(too_wide());
        }
        if self.steps - self.looked > STEPS_ALONE {
            self.looked = self.steps;
            if self.found.channel.is_abandoned() {
                return Err(Stop::Gone);
            }
        }
        let text = name.to_bytes();
        let hidden = text.first() == Some(&b'.');
        let fits = |at: usize| {
            let Component { text: component, plain, .. } = &self.pattern[at];
            if self.is_deep(at) {
                !hidden
            } else {
                text == &component[..] || (!plain && text != b".." && matches(component, text))
            }
        };
        let fitting: Open = open.iter().copied().filter(|at| fits(*at)).collect();
        if fitting.is_empty() || join(above, text).len() > path::MAX_PATH {
            return Ok(None);
        }
        let Ok(stat) = sys::stat_at(dir, name, libc::AT_SYMLINK_NOFOLLOW) else { return Ok(None) };
        let kind = stat.st_mode & libc::S_IFMT;
        if fitting.iter().any(|at| self.pattern[*at].last) {
            self.found.add(&join(above, text))?;
        }
        let link = kind == libc::S_IFLNK;
        if !link && kind != libc::S_IFDIR {
            return Ok(None);
        }
        let below = |at: usize| {
            if self.is_deep(at) { (!link).then_some(at) } else { (!self.pattern[at].last).then_some(at + 1) }
        };
        let next: Open = fitting.into_iter().filter_map(below).collect();
        Ok((!next.is_empty()).then_some((next, link)))
    }

    fn run(&mut self) -> Served {
        let failure = |error: Error| failed("/", &error);
        let root = path::open(&path::Path { components: Vec::new() }, SEARCH)?;
        let mut trail = Trail::new(root).map_err(failure)?;
        let mut path = b"/".to_vec();
        let starts = std::mem::take(&mut self.starts);
        let mut levels = vec![self.level(&trail, starts, path.len())?];
        while let Some(level) = levels.last_mut() {
            let Some(name) = level.names.pop() else {
                if let Some(last) = level.more.take() {
                    self.read_on(&trail, level, &last);
                    continue;
                }
                levels.pop();
                let Some(above) = levels.last() else { break };
                path.truncate(above.path);
                // Below a symlink `..` leads elsewhere. What is gone by now holds no more matches.
                let again = || path::open_at(libc::AT_FDCWD, &sys::c_string(&path)?, SEARCH);
                if trail.leave(again).is_err() {
                    return Err(refused(ErrorCode::Busy, "directories were moved while the pattern was looked for"));
                }
                continue;
            };
            let open = std::mem::take(&mut level.open);
            let next = self.look(trail.dir(), &path, &name, &open);
            level.open = open;
            let Some((open, follow)) = next? else { continue };
            let inner = join(&path, name.to_bytes());
            let flags = if follow { SEARCH } else { SEARCH | libc::O_NOFOLLOW };
            let Ok(below) = path::open_at(trail.dir(), &name, flags) else { continue };
            trail.enter_opened(below).map_err(failure)?;
            path = inner;
            let level = self.level(&trail, open, path.len())?;
            levels.push(level);
        }
        Ok(())
    }
}

fn too_wide() -> Stop {
    refused(
        ErrorCode::TooLarge,
        format!("the pattern finds more than {MAX_PATHS} paths or {MAX_ANSWER} bytes of them, or looks at too many"),
    )
}

const SEARCH: libc::c_int = libc::O_PATH | libc::O_DIRECTORY;

/// Paths longer than a request can name are left out.
pub fn glob(channel: &mut Channel, request: &FileGlob) -> Served {
    let found = Found { channel, batch: Vec::new(), batch_bytes: 0, total: 0, total_bytes: 0 };
    let (mut pattern, mut starts, mut root) = (Vec::new(), Vec::new(), false);
    for alternative in alternatives(request.pattern.as_bytes())? {
        let mut components = path::parse(&String::from_utf8_lossy(&alternative))?.components;
        // Neighbouring ** mean no more than one.
        components.dedup_by(|a, b| a == b"**" && b == b"**");
        root |= components.is_empty();
        let Some(last) = components.len().checked_sub(1) else { continue };
        starts.push(pattern.len());
        pattern.extend(components.into_iter().enumerate().map(|(at, text)| Component::new(text, at == last)));
    }
    let mut search = Search { pattern: &pattern, starts, found, steps: 0, looked: 0 };
    if root {
        search.found.add(b"/")?;
    }
    search.run()?;
    search.found.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expand(pattern: &str) -> Vec<String> {
        let expanded = alternatives(pattern.as_bytes()).unwrap_or_else(|_| panic!("too many alternatives"));
        expanded.into_iter().map(|one| String::from_utf8_lossy(&one).into_owned()).collect()
    }

    #[test]
    fn braces_expand_nested_and_stand_for_themselves_when_incomplete() {
        assert_eq!(expand("/a{b,c{d,e}}f"), ["/abf", "/acdf", "/acef"]);
        assert_eq!(expand("/a{b}c{,x}"), ["/a{b}c", "/a{b}cx"]);
        assert_eq!(expand("/a{b"), ["/a{b"]);
    }

    #[test]
    fn braces_cost_neither_stack_nor_quadratic_time() {
        // Looked through again from each of its braces, the first pattern alone would take a billion steps an alternative.
        let open = "{".repeat(40_000);
        assert_eq!(expand(&format!("/{open}{{a,b}}{{a,b}}")).len(), 4);
        assert!(alternatives("{a,b}".repeat(800).as_bytes()).is_err());
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
