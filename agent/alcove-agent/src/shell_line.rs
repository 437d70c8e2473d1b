//! `/bin/sh -c LINE` for a shell that stays when its line's last command begins: a signal that ends that command would then
//! look like an exit with 128 + n. Where it makes no other difference the line is written so that the shell is replaced.

/// Programs of this name stay; others that are commonly `/bin/sh` replace themselves.
const STAYS: &[u8] = b"dash";

/// Words that begin something else than the program of that name.
const NO_PROGRAM: [&str; 63] = [
    "!", ".", ":", "[", "[[", "alias", "bg", "break", "case", "cd", "command", "continue", "coproc", "do", "done",
    "echo", "elif", "else", "esac", "eval", "exec", "exit", "export", "false", "fc", "fg", "fi", "for", "function",
    "getopts", "hash", "if", "in", "jobs", "kill", "let", "local", "newgrp", "printf", "pwd", "read", "readonly",
    "return", "select", "set", "shift", "source", "test", "then", "time", "times", "trap", "true", "type", "ulimit",
    "umask", "unalias", "unset", "until", "wait", "while", "{", "}",
];

/// Whether the program that `/bin/sh` stands for is one that stays.
pub fn stays() -> bool {
    let target = crate::files::path::read_link(libc::AT_FDCWD, c"/bin/sh").unwrap_or_default();
    target.rsplit(|byte| *byte == b'/').next() == Some(STAYS)
}

/// The line with its last command in place of the shell; None when that could make a difference, or cannot be told.
pub fn replaced(line: &str) -> Option<String> {
    // The places where a command begins, each after `;`, `&&`, `||` or the end of a line.
    let mut begins = vec![0];
    let bytes = line.as_bytes();
    let mut at = 0;
    while at < bytes.len() {
        match bytes[at] {
            b'\\' => at += 1,
            b'\'' => at += 1 + bytes[at + 1..].iter().position(|byte| *byte == b'\'')?,
            b'"' => at = end_of_quote(bytes, at)?,
            b';' | b'\n' => begins.push(at + 1),
            b'&' | b'|' if bytes.get(at + 1) == Some(&bytes[at]) => {
                at += 1;
                begins.push(at + 1);
            }
            // `2>&1` and `>|` are no lists; the rest would need a shell to be read.
            b'&' if at > 0 && matches!(bytes[at - 1], b'>' | b'<') => {}
            b'&' | b'|' | b'(' | b')' | b'`' | b'#' | b'{' | b'}' => return None,
            b'<' if bytes.get(at + 1) == Some(&b'<') => return None,
            _ => {}
        }
        at += 1;
    }
    let first_word = |from: usize| line[from..].split([' ', '\t', '\n', ';', '&', '|']).find(|word| !word.is_empty());
    // Compound commands reach over their ends, and a trap runs only in a shell that is still there.
    for begin in &begins[..begins.len() - 1] {
        let word = first_word(*begin).unwrap_or("");
        let harmless = ["cd", "export", "echo", "printf", "true", ":", "set", "umask", "test", "[", "mkdir"];
        if word.is_empty() || (NO_PROGRAM.contains(&word) && !harmless.contains(&word)) || line.contains("trap") {
            return None;
        }
    }
    let begin = *begins.last()?;
    let word = first_word(begin)?;
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_./+-".contains(&byte);
    if NO_PROGRAM.contains(&word) || !word.bytes().all(plain) {
        return None;
    }
    let start = begin + line[begin..].find(word)?;
    Some(format!("{}exec {}", &line[..start], &line[start..]))
}

/// Where a double quote ends that begins at `from`; None when it does not, or holds a command.
fn end_of_quote(bytes: &[u8], from: usize) -> Option<usize> {
    let mut at = from + 1;
    loop {
        match *bytes.get(at)? {
            b'"' => return Some(at),
            b'`' => return None,
            b'$' if bytes.get(at + 1) == Some(&b'(') => return None,
            b'\\' => at += 1,
            _ => {}
        }
        at += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_of_simple_commands_replaces_the_shell() {
        for (line, expected) in [
            ("python3 x.py", "exec python3 x.py"),
            ("  ./a.out < in > out 2>&1", "  exec ./a.out < in > out 2>&1"),
            ("cd /tmp && make -j4", "cd /tmp && exec make -j4"),
            ("echo a; python3 -c 'import os; os.abort()'", "echo a; exec python3 -c 'import os; os.abort()'"),
            ("gcc x.c || cat \"log; $X\"", "gcc x.c || exec cat \"log; $X\""),
            ("a\nb 'it'\\''s'", "a\nexec b 'it'\\''s'"),
        ] {
            assert_eq!(replaced(line).as_deref(), Some(expected), "{line}");
        }
    }

    #[test]
    fn what_needs_a_shell_keeps_it() {
        for line in [
            "",
            " ",
            "echo x",
            "cd /tmp",
            "A=1 b",
            "a | b",
            "a & b",
            "a; b &",
            "a $(b)",
            "a `b`",
            "a \"$(b)\"",
            "(a)",
            "{ a; }",
            "if a; then b; fi",
            "for i in 1 2; do a; done",
            "while a; do b; done",
            "trap 'rm x' EXIT; a",
            "f() { a; }; b",
            "a <<E\nb\nE",
            "a # b",
            "a 'b",
            "a \"b",
            "$X y",
            "'a' b",
            "a;",
            "exec a",
            "! a",
            "wait; a",
        ] {
            assert_eq!(replaced(line), None, "{line}");
        }
    }
}
