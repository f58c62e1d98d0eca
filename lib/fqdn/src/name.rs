//! The canonical form of names.

/// Returns a name in lower case with a dot at its end. The dot after an odd number of backslashes is a part of the last
/// label.
///
/// ```
/// assert_eq!(fqdn::canonical("A.io"), "a.io.");
/// assert_eq!(fqdn::canonical("a.io."), "a.io.");
/// assert_eq!(fqdn::canonical(r"a\."), r"a\..");
/// ```
pub fn canonical(name: &str) -> String {
    let mut name = name.to_ascii_lowercase();
    let is_absolute = name.strip_suffix('.').is_some_and(|rest| {
        let escapes = rest.bytes().rev().take_while(|b| *b == b'\\').count();
        escapes % 2 == 0
    });
    if !is_absolute {
        name.push('.');
    }
    name
}
