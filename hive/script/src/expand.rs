//! Variables in words, names and expected files.

/// Replaces `$name` and `${name}` by the result of `value`. A name after `$` is a run of letters, digits and `_`, or
/// one of `*#$@!?-` or a digit; after `${` everything up to the brace. `$` before anything else stays, `${}` and an
/// unclosed `${` are dropped. `${/}` and `${:}` are `/` and `:`.
pub fn expand(text: &str, value: impl Fn(&str) -> String) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        out.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        if let Some(braced) = rest.strip_prefix('{') {
            rest = braced;
            let Some(end) = braced.find('}') else { continue };
            rest = &braced[end + 1..];
            match &braced[..end] {
                "" => {}
                "/" => out.push('/'),
                ":" => out.push(':'),
                name => out.push_str(&value(name)),
            }
            continue;
        }
        match name_length(rest) {
            0 => out.push('$'),
            length => {
                out.push_str(&value(&rest[..length]));
                rest = &rest[length..];
            }
        }
    }
    out + rest
}

fn name_length(text: &str) -> usize {
    match text.bytes().next() {
        Some(first) if b"*#$@!?-0123456789".contains(&first) => 1,
        _ => text.bytes().take_while(|byte| byte.is_ascii_alphanumeric() || *byte == b'_').count(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn names_as_a_shell_has_them() {
        let expand = |text: &str| expand(text, |name| format!("<{name}>"));
        assert_eq!(expand("a$b/${c d}e$f_1-"), "a<b>/<c d>e<f_1>-");
        assert_eq!(expand("$1x $$ $- 100$ $/ $"), "<1>x <$> <-> 100$ $/ $");
        assert_eq!(expand("${/}${:}${}|${open"), "/:|open");
        assert_eq!(expand("${*}é$é"), "<*>é$é");
    }

    proptest! {
        #[test]
        fn text_without_dollar_is_unchanged(text in "[^$]{0,40}") {
            prop_assert_eq!(expand(&text, |_| unreachable!()), text);
        }

        #[test]
        fn never_panics(text in "[${}a/:*é]{0,40}") {
            expand(&text, |name| name.to_owned());
        }
    }
}
