//! YAML in the format of Kubernetes' tools.
//!
//! The format is that of `sigs.k8s.io/yaml`, which uses go-yaml v2 (derived from libyaml): names in natural order,
//! lists not indented below their name, strings in double quotes if they would be parsed as another type, multi-line
//! texts as
//! `|` blocks, lines folded at the first blank behind column 80.

use serde_json::{Map, Number, Value};

/// The column behind which a line is folded at the next blank.
const WIDTH: usize = 80;

/// The maximum length of a simple name; a longer one is written as `? name`.
const LONGEST_SIMPLE_NAME: usize = 128;

/// Returns a value as a document, with a final line end.
///
/// ```
/// let object = serde_json::json!({"metadata": {"name": "a", "resourceVersion": "7"}, "items": [{"b": "y", "c": 1}], "d": {}});
/// assert_eq!(
///     k8s_types::yaml::print(&object),
///     "d: {}\nitems:\n- b: \"y\"\n  c: 1\nmetadata:\n  name: a\n  resourceVersion: \"7\"\n"
/// );
/// ```
pub fn print(value: &Value) -> String {
    let mut printer = Printer::default();
    match value {
        Value::Object(members) if !members.is_empty() => printer.mapping(members, 0),
        Value::Array(items) if !items.is_empty() => printer.sequence(items, 0),
        scalar => printer.scalar(scalar, 0),
    }
    if !printer.out.ends_with('\n') {
        printer.out.push('\n');
    }
    printer.out
}

#[derive(Default)]
struct Printer {
    out: String,
    /// The number of characters in the current line.
    column: usize,
}

impl Printer {
    fn write(&mut self, text: &str) {
        self.out.push_str(text);
        self.column += text.chars().count();
    }

    fn push(&mut self, c: char) {
        self.out.push(c);
        self.column += 1;
    }

    /// Starts an indented line; or pads the current one, if it has only the `-` or `?` of an item.
    fn line(&mut self, indent: usize) {
        let fresh =
            self.column <= indent && self.out.bytes().rev().take(self.column).all(|c| b" -?:".contains(&c));
        if !fresh {
            self.out.push('\n');
            self.column = 0;
        }
        while self.column < indent {
            self.push(' ');
        }
    }

    fn mapping(&mut self, members: &Map<String, Value>, indent: usize) {
        let mut members: Vec<(&String, &Value)> = members.iter().collect();
        members.sort_by(|a, b| natural(a.0, b.0));
        for (name, value) in members {
            self.line(indent);
            if name.len() <= LONGEST_SIMPLE_NAME && !name.contains(is_break) {
                self.text(name, None);
                self.push(':');
                self.below(value, indent);
            } else {
                self.write("? ");
                self.text(name, Some(indent + 2));
                self.line(indent);
                self.push(':');
                self.part(value, indent);
            }
        }
    }

    fn sequence(&mut self, items: &[Value], indent: usize) {
        for item in items {
            self.line(indent);
            self.push('-');
            self.part(item, indent);
        }
    }

    /// Writes the value of a member after its name.
    fn below(&mut self, value: &Value, indent: usize) {
        match value {
            Value::Object(members) if !members.is_empty() => {
                self.break_line();
                self.mapping(members, indent + 2);
            }
            Value::Array(items) if !items.is_empty() => {
                self.break_line();
                self.sequence(items, indent);
            }
            scalar => {
                self.push(' ');
                self.scalar(scalar, indent + 2);
            }
        }
    }

    /// Writes an item that starts on the line of its `-` or `?`.
    fn part(&mut self, value: &Value, indent: usize) {
        match value {
            Value::Object(members) if !members.is_empty() => self.mapping(members, indent + 2),
            Value::Array(items) if !items.is_empty() => self.sequence(items, indent + 2),
            scalar => {
                self.push(' ');
                self.scalar(scalar, indent + 2);
            }
        }
    }

    fn break_line(&mut self) {
        self.out.push('\n');
        self.column = 0;
    }

    fn scalar(&mut self, value: &Value, indent: usize) {
        match value {
            Value::Null => self.write("null"),
            Value::Bool(value) => self.write(if *value { "true" } else { "false" }),
            Value::Number(number) => self.write(&number_text(number)),
            Value::String(text) => self.text(text, Some(indent)),
            Value::Array(_) => self.write("[]"),
            Value::Object(_) => self.write("{}"),
        }
    }

    /// Writes a string with the indentation of continuation lines; none for a name, which must not be folded.
    fn text(&mut self, text: &str, indent: Option<usize>) {
        let shape = Shape::of(text);
        match indent {
            Some(indent) if text.contains('\n') && shape.block => self.block(text, indent),
            _ if text.contains('\n') || !yaml_values::is_plain_string(text) => {
                self.double_quoted(text, indent)
            }
            _ if shape.plain => self.folded(text, indent),
            _ if shape.single_quoted => {
                self.push('\'');
                self.folded(&text.replace('\'', "''"), indent);
                self.push('\'');
            }
            _ => self.double_quoted(text, indent),
        }
    }

    /// Writes a plain or single-quoted text, which needs no escapes.
    fn folded(&mut self, text: &str, indent: Option<usize>) {
        let chars: Vec<char> = text.chars().collect();
        for (at, &c) in chars.iter().enumerate() {
            match (self.folds(&chars, at, indent), indent) {
                (true, Some(indent)) if chars[at + 1] != ' ' => self.line(indent),
                _ => self.push(c),
            }
        }
    }

    /// Whether to fold the line at this blank.
    fn folds(&self, chars: &[char], at: usize, indent: Option<usize>) -> bool {
        indent.is_some()
            && self.column > WIDTH
            && chars[at] == ' '
            && at > 0
            && at + 1 < chars.len()
            && chars[at - 1] != ' '
    }

    fn double_quoted(&mut self, text: &str, indent: Option<usize>) {
        let chars: Vec<char> = text.chars().collect();
        self.push('"');
        for (at, &c) in chars.iter().enumerate() {
            if let (true, Some(indent)) = (self.folds(&chars, at, indent), indent) {
                self.line(indent);
                if chars[at + 1] == ' ' {
                    self.push('\\');
                }
            } else if c == '"' || c == '\\' || !printable(c) || is_break(c) {
                self.write(&escape(c));
            } else {
                self.push(c);
            }
        }
        self.push('"');
    }

    /// Writes a multi-line text as a `|` block.
    fn block(&mut self, text: &str, indent: usize) {
        self.push('|');
        if text.starts_with(|c: char| c == ' ' || is_break(c)) {
            self.push('2');
        }
        match text.strip_suffix('\n') {
            None => self.push('-'),
            Some(rest) if rest.is_empty() || rest.ends_with('\n') => self.push('+'),
            Some(_) => {}
        }
        self.break_line();
        for line in text.split_inclusive('\n') {
            let words = line.trim_end_matches('\n');
            if !words.is_empty() {
                self.line(indent.max(2));
                self.write(words);
            }
            if words.len() < line.len() {
                self.break_line();
            }
        }
    }
}

/// The allowed styles of a text (libyaml's analysis of scalars).
struct Shape {
    plain: bool,
    single_quoted: bool,
    block: bool,
}

impl Shape {
    fn of(text: &str) -> Shape {
        let chars: Vec<char> = text.chars().collect();
        let blank = |at: usize| chars.get(at).is_none_or(|&c| c == ' ' || c == '\t' || is_break(c));
        let mut indicators = text.starts_with("---") || text.starts_with("...");
        let (mut special, mut space_break, mut break_space) = (false, false, false);
        for (at, &c) in chars.iter().enumerate() {
            indicators |= match (at, c) {
                (
                    0,
                    '#' | ',' | '[' | ']' | '{' | '}' | '&' | '*' | '!' | '|' | '>' | '\'' | '"' | '%' | '@'
                    | '`',
                ) => true,
                (0, '?' | ':' | '-') | (_, ':') => blank(at + 1),
                (_, '#') => blank(at - 1),
                _ => false,
            };
            special |= !printable(c);
            let before = at.checked_sub(1).map(|at| chars[at]);
            space_break |= is_break(c) && before == Some(' ');
            break_space |= c == ' ' && before.is_some_and(is_break);
        }
        let ends = |at: Option<&char>, breaks: bool| at.is_some_and(|&c| c == ' ' || breaks && is_break(c));
        let broken = special || space_break;
        Shape {
            plain: !indicators
                && !broken
                && !chars.iter().any(|&c| is_break(c))
                && !ends(chars.first(), true)
                && !ends(chars.last(), true),
            single_quoted: !broken && !break_space,
            block: !broken && !ends(chars.last(), false),
        }
    }
}

fn is_break(c: char) -> bool {
    matches!(c, '\n' | '\r' | '\u{85}' | '\u{2028}' | '\u{2029}')
}

/// Whether go-yaml writes a character unescaped. False for the line and paragraph separators: it makes line ends of
/// them.
fn printable(c: char) -> bool {
    let known = matches!(c, '\n' | ' '..='~' | '\u{a0}'..='\u{d7ff}' | '\u{e000}'..='\u{fffd}');
    known && !matches!(c, '\u{2028}' | '\u{2029}' | '\u{feff}')
}

fn escape(c: char) -> String {
    let short = match c {
        '\0' => '0',
        '\u{7}' => 'a',
        '\u{8}' => 'b',
        '\t' => 't',
        '\n' => 'n',
        '\u{b}' => 'v',
        '\u{c}' => 'f',
        '\r' => 'r',
        '\u{1b}' => 'e',
        '"' => '"',
        '\\' => '\\',
        '\u{85}' => 'N',
        '\u{2028}' => 'L',
        '\u{2029}' => 'P',
        other => {
            return match u32::from(other) {
                code @ ..=0xff => format!("\\x{code:02X}"),
                code @ ..=0xffff => format!("\\u{code:04X}"),
                code => format!("\\U{code:08X}"),
            };
        }
    };
    format!("\\{short}")
}

/// Returns a number as Go prints it: integers as digits, others in the format of `%g`.
fn number_text(number: &Number) -> String {
    let Some(float) = number.as_f64().filter(|_| number.is_f64()) else { return number.to_string() };
    let scientific = format!("{float:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    match exponent.parse::<i32>().unwrap_or_default() {
        -4..=5 => format!("{float}"),
        exponent => format!("{digits}e{}{:02}", if exponent < 0 { '-' } else { '+' }, exponent.abs()),
    }
}

/// Compares names in the order of go-yaml: runs of digits as numbers, letters after all other characters.
fn natural(a: &str, b: &str) -> std::cmp::Ordering {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let Some(at) = a.iter().zip(&b).position(|(a, b)| a != b) else { return a.len().cmp(&b.len()) };
    match (a[at].is_alphabetic(), b[at].is_alphabetic()) {
        (true, true) => return a[at].cmp(&b[at]),
        (false, false) => {}
        (letter, _) => return letter.cmp(&!letter),
    }
    let run = |text: &[char]| text[at..].iter().take_while(|c| c.is_ascii_digit()).count();
    // A zero inside a number is not a leading one: a prefixed one keeps it significant.
    let inside = (a[at] == '0' || b[at] == '0')
        && a[..at].iter().rev().take_while(|c| c.is_ascii_digit()).any(|&c| c != '0');
    let number = |text: &[char]| {
        let digits = text[at..at + run(text)].iter().filter_map(|c| c.to_digit(10));
        digits.fold(i64::from(inside), |sum, digit| sum.wrapping_mul(10).wrapping_add(digit.into()))
    };
    number(&a).cmp(&number(&b)).then(run(&a).cmp(&run(&b))).then(a[at].cmp(&b[at]))
}

#[cfg(test)]
mod tests;
