//! Takes secrets out of text, line by line. Uses nothing.
//!
//! Secrets are not asked for in the first place: no environment, no kubeconfig, no Secret objects, no keys of XFRM. This is
//! for secrets in options, labels and lines of the kernel's log.

use std::borrow::Cow;
use std::sync::LazyLock;

use regex::bytes::{Captures, Regex};

const REPLACED: &str = "[redacted]";
const BEGIN: &[u8] = b"-----BEGIN ";
const END: &[u8] = b"-----END ";
/// Lines of a long private key: what never ends is none, and must not hide the rest.
const MAX_KEY_LINES: usize = 256;

/// Words that name a secret, as parts of keys.
const SECRETS: &str = "password|passwd|passphrase|secret|token|credential|private[-_]?key|access[-_]?key|api[-_]?key|\
                       pre-?_?shared-?_?key|key[-_]data|fastopen_key";

/// A value; a quoted one may contain blanks and escaped quotes, or not end in the line.
const ANY_VALUE: &str = r#"\\"[^"]*"|"(?:[^"\\]|\\.)*"|'[^']*'|[^\s"',}]+|["'][^\n]+"#;

/// A key that names a secret, a separator, and its value.
static VALUE: LazyLock<Regex> = LazyLock::new(|| {
    regex(&format!(r#"(?i)((?:[\w.-]*(?:{SECRETS})[\w.-]*)(?:\\?["'])?\s*[:=]\s*)({ANY_VALUE})"#))
});

/// An option of a command line, and its value as the next word.
static OPTION: LazyLock<Regex> =
    LazyLock::new(|| regex(&format!(r"(?i)((?:^|\s)--?[\w.-]*(?:{SECRETS})[\w.-]*[ \t]+)([^\s-]\S*)")));

/// Credentials in headers, JSON Web Tokens, and passwords in URLs.
static CREDENTIALS: LazyLock<Regex> = LazyLock::new(|| {
    regex(
        r"(?i)(\b(?:bearer|basic)\s+)[\w.~+/=-]{8,}|\beyJ[\w-]{8,}\.[\w-]+\.[\w-]*|(://[^/\s:@]*:)[^/\s@]+(@)",
    )
});

/// Values that say how a secret is used, not what it is.
static HARMLESS: LazyLock<Regex> =
    LazyLock::new(|| regex(r#"(?i)^\\?["']?(?:true|false|null|none|)\\?["']?$"#));

/// Numbers and times. They can be a password.
static NUMBER: LazyLock<Regex> = LazyLock::new(|| regex(r#"(?i)^["']?[0-9]+[a-z]{0,2}["']?$"#));
static PASSWORD: LazyLock<Regex> = LazyLock::new(|| regex("(?i)pass(?:word|wd|phrase)"));

/// Keys that name where a secret is.
static PLACE: LazyLock<Regex> =
    LazyLock::new(|| regex(r"(?i)(?:namespace|file|path|dir|sync|enabled|interval)\W*$"));

fn regex(pattern: &str) -> Regex {
    Regex::new(&format!("(?-u){pattern}")).expect("constant patterns are valid")
}

/// Replaces secrets in the lines that pass.
#[derive(Debug, Default)]
pub(super) struct Redactor {
    /// Lines that may still be part of a private key.
    key_lines: usize,
}

impl Redactor {
    /// Returns the line without its secrets; nothing for lines inside of a private key.
    pub(super) fn line<'a>(&mut self, line: &'a [u8]) -> Option<Cow<'a, [u8]>> {
        if self.key_lines > 0 {
            self.key_lines = if find(line, END).is_some() { 0 } else { self.key_lines - 1 };
            return None;
        }
        if let Some(start) = find(line, BEGIN).filter(|start| find(&line[*start..], b"PRIVATE KEY").is_some())
        {
            // JSON has the whole key in a line.
            let end = find(&line[start..], END);
            self.key_lines = if end.is_none() { MAX_KEY_LINES } else { 0 };
            let rest = end.map_or(&b"\n"[..], |end| after_marker(&line[start + end + END.len()..]));
            return Some([&line[..start], REPLACED.as_bytes(), rest].concat().into());
        }
        let line = VALUE.replace_all(line, replacement);
        let line = replace_in(line, |line| OPTION.replace_all(line, replacement));
        let credentials = format!("${{1}}${{2}}{REPLACED}${{3}}");
        Some(replace_in(line, |line| CREDENTIALS.replace_all(line, credentials.as_bytes())))
    }
}

fn replace_in<'a>(line: Cow<'a, [u8]>, replace: impl Fn(&[u8]) -> Cow<'_, [u8]>) -> Cow<'a, [u8]> {
    match replace(&line) {
        Cow::Borrowed(_) => line,
        Cow::Owned(changed) => changed.into(),
    }
}

/// Returns a key with its value, if that is no secret.
fn replacement(found: &Captures<'_>) -> Vec<u8> {
    let (key, value) = (&found[1], &found[2]);
    let is_kept =
        HARMLESS.is_match(value) || PLACE.is_match(key) || NUMBER.is_match(value) && !PASSWORD.is_match(key);
    [key, if is_kept { value } else { REPLACED.as_bytes() }].concat()
}

/// Returns what follows the end marker of a key, whose name ends with five dashes.
fn after_marker(rest: &[u8]) -> &[u8] {
    find(rest, b"-----").map_or(&b"\n"[..], |dashes| &rest[dashes + 5..])
}

fn find(text: &[u8], part: &[u8]) -> Option<usize> {
    text.windows(part.len()).position(|window| window == part)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn redact(text: &str) -> String {
        let mut redactor = Redactor::default();
        let lines = text.split_inclusive('\n').filter_map(|line| redactor.line(line.as_bytes()));
        String::from_utf8(lines.collect::<Vec<_>>().concat()).unwrap()
    }

    #[test]
    fn secrets_go() {
        for (line, expected) in [
            ("password: hunter2\n", "password: [redacted]\n"),
            (r#"{"etcd.password":"a b","x":1}"#, r#"{"etcd.password":[redacted],"x":1}"#),
            ("AWS_SECRET_ACCESS_KEY=abc/def next\n", "AWS_SECRET_ACCESS_KEY=[redacted] next\n"),
            ("Authorization: Bearer abcdefgh.ijk\n", "Authorization: Bearer [redacted]\n"),
            ("x eyJhbGciOiJI.eyJzdWIi.c2ln y\n", "x [redacted] y\n"),
            ("etcd https://root:pa55@10.0.0.1:2379/\n", "etcd https://root:[redacted]@10.0.0.1:2379/\n"),
            ("--set token='a b'\n", "--set token=[redacted]\n"),
            ("7 root app --password hunter2 -v\n", "7 root app --password [redacted] -v\n"),
            ("app -token abc --client-secret 'x\n", "app -token [redacted] --client-secret [redacted]\n"),
            (r#"{"password":"a\"b c","x":1}"#, r#"{"password":[redacted],"x":1}"#),
            (r#"{"x":"{\"password\":\"a b\"}"}"#, r#"{"x":"{\"password\":[redacted]}"}"#),
            ("password: \"a b\n", "password: [redacted]\n"),
            ("password: 123456\n", "password: [redacted]\n"),
            ("aws-secret: /wJalrXUtnFEMI/K7\n", "aws-secret: [redacted]\n"),
            ("redis://:pa55@10.0.0.1/0\n", "redis://:[redacted]@10.0.0.1/0\n"),
            ("PresharedKey = c2VjcmV0\n", "PresharedKey = [redacted]\n"),
            ("    client-key-data: LS0tLS1C\n", "    client-key-data: [redacted]\n"),
            ("net.ipv4.tcp_fastopen_key = 0a-1b\n", "net.ipv4.tcp_fastopen_key = [redacted]\n"),
        ] {
            assert_eq!(redact(line), expected);
        }
    }

    #[test]
    fn keys_go_over_lines_and_inside_of_a_line() {
        let key = "a\n-----BEGIN EC PRIVATE KEY-----\nMHcCAQ\nAAAA\n-----END EC PRIVATE KEY-----\nb\n";
        assert_eq!(redact(key), "a\n[redacted]\nb\n");
        let json = "{\"k\":\"-----BEGIN PRIVATE KEY-----\\nMII\\n-----END PRIVATE KEY-----\\n\",\"b\":1}\n";
        assert_eq!(redact(json), "{\"k\":\"[redacted]\\n\",\"b\":1}\n");
        let endless =
            "-----BEGIN PRIVATE KEY-----\n".to_owned() + &"A\n".repeat(MAX_KEY_LINES) + "kernel: oops\n";
        assert_eq!(redact(&endless), "[redacted]kernel: oops\n".replace(']', "]\n"));
        assert_eq!(redact("-----BEGIN CERTIFICATE-----\nMII\n"), "-----BEGIN CERTIFICATE-----\nMII\n");
    }

    #[test]
    fn what_describes_a_fault_stays() {
        for line in [
            "enable-secrets-sync: true\n",
            "tls-secrets-namespace: cilium-secrets\n",
            "hubble-tls-key-file: /var/lib/key\n",
            "token-ttl: 30s\n",
            "app --token-file /run/token --enable-secrets-sync true --token-ttl 30s\n",
            "-A INPUT -m comment --comment token -j DROP\n",
            "k8s:app=secretary\n",
            "10.0.0.1:80 -> [fd00::1]:443 identity=1234\n",
            "\u{fffd} bytes that are no text \u{0}\n",
        ] {
            assert_eq!(redact(line), line);
        }
    }
}
