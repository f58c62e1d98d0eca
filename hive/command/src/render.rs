//! Output formats of commands: tables, JSON and YAML as Go's tools write them.

use std::fmt::Write;

/// Formats rows as a table: each column has the width of its longest cell and three blanks, at least five; the last is
/// not padded.
pub fn table(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count() + 3).max().unwrap_or(0).max(5)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for row in rows {
        for (column, cell) in row.iter().enumerate() {
            let padding = if column + 1 == row.len() { 0 } else { widths[column] - cell.chars().count() };
            text.push_str(cell);
            text.extend(std::iter::repeat_n(' ', padding));
        }
        text.push('\n');
    }
    text
}

/// Formats JSON text with line breaks and two blanks a level, `<`, `>` and `&` escaped, ended by a newline.
pub fn json(compact: &str) -> String {
    let mut out = String::with_capacity(compact.len() * 2);
    let (mut depth, mut in_string, mut escaped) = (0_usize, false, false);
    let newline = |out: &mut String, depth: usize| {
        out.push('\n');
        out.extend(std::iter::repeat_n("  ", depth));
    };
    let mut chars = compact.chars().peekable();
    while let Some(c) = chars.next() {
        if in_string {
            match c {
                '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => {
                    let _ = write!(out, "\\u{:04x}", u32::from(c));
                }
                c => out.push(c),
            }
            in_string = escaped || c != '"';
            escaped = !escaped && c == '\\';
            continue;
        }
        match c {
            '{' | '[' => {
                out.push(c);
                if let Some(end) = chars.next_if(|next| matches!(next, '}' | ']')) {
                    out.push(end);
                } else {
                    depth += 1;
                    newline(&mut out, depth);
                }
            }
            '}' | ']' => {
                depth = depth.saturating_sub(1);
                newline(&mut out, depth);
                out.push(c);
            }
            ',' => {
                out.push(c);
                newline(&mut out, depth);
            }
            ':' => out.push_str(": "),
            c if c.is_ascii_whitespace() => {}
            c => {
                in_string = c == '"';
                out.push(c);
            }
        }
    }
    out.push('\n');
    out
}

/// Converts JSON text to YAML: maps, and lists within maps, are indented by four blanks; `key` maps the keys.
pub fn yaml(compact: &str, key: impl Fn(&str) -> String + Copy) -> Result<String, serde_json::Error> {
    let node: Node = serde_json::from_str(compact)?;
    let mut out = String::new();
    match &node {
        Node::Map(fields) if !fields.is_empty() => yaml_map(fields, 0, &mut out, key),
        Node::List(items) if !items.is_empty() => yaml_list(items, 0, &mut out, key),
        node => {
            yaml_scalar(node, 0, &mut out);
            out.push('\n');
        }
    }
    Ok(out)
}

/// A JSON value whose maps keep their order.
enum Node {
    Null,
    Bool(bool),
    Number(serde_json::Number),
    Text(String),
    List(Vec<Node>),
    Map(Vec<(String, Node)>),
}

fn yaml_map(fields: &[(String, Node)], indent: usize, out: &mut String, key: impl Fn(&str) -> String + Copy) {
    // go-yaml indents to the next multiple of four.
    let nested = (indent + 4) / 4 * 4;
    for (at, (name, value)) in fields.iter().enumerate() {
        if at > 0 {
            out.extend(std::iter::repeat_n(' ', indent));
        }
        let _ = write!(out, "{}:", quoted(&key(name)));
        match value {
            Node::Map(fields) if !fields.is_empty() => {
                out.push('\n');
                out.extend(std::iter::repeat_n(' ', nested));
                yaml_map(fields, nested, out, key);
            }
            Node::List(items) if !items.is_empty() => {
                out.push('\n');
                out.extend(std::iter::repeat_n(' ', nested));
                yaml_list(items, nested, out, key);
            }
            scalar => {
                out.push(' ');
                yaml_scalar(scalar, nested, out);
                out.push('\n');
            }
        }
    }
}

fn yaml_list(items: &[Node], indent: usize, out: &mut String, key: impl Fn(&str) -> String + Copy) {
    for (at, item) in items.iter().enumerate() {
        if at > 0 {
            out.extend(std::iter::repeat_n(' ', indent));
        }
        out.push_str("- ");
        match item {
            Node::Map(fields) if !fields.is_empty() => yaml_map(fields, indent + 2, out, key),
            Node::List(items) if !items.is_empty() => yaml_list(items, indent + 2, out, key),
            scalar => {
                yaml_scalar(scalar, indent + 2, out);
                out.push('\n');
            }
        }
    }
}

fn yaml_scalar(node: &Node, indent: usize, out: &mut String) {
    match node {
        Node::Null => out.push_str("null"),
        Node::Bool(value) => out.push_str(if *value { "true" } else { "false" }),
        Node::Number(number) => out.push_str(&number.to_string()),
        Node::Text(text) if text.contains('\n') => {
            let kept = if text.ends_with("\n\n") {
                "+"
            } else if text.ends_with('\n') {
                ""
            } else {
                "-"
            };
            let _ = write!(out, "|{kept}");
            for line in text.strip_suffix('\n').unwrap_or(text).split('\n') {
                out.push('\n');
                if !line.is_empty() {
                    out.extend(std::iter::repeat_n(' ', indent));
                }
                out.push_str(line);
            }
        }
        Node::Text(text) => out.push_str(&quoted(text)),
        Node::List(_) => out.push_str("[]"),
        Node::Map(_) => out.push_str("{}"),
    }
}

/// Formats a text as a YAML scalar.
pub fn yaml_text(text: &str) -> String {
    quoted(text)
}

/// Quotes a text for YAML if needed: in double quotes if it would be parsed as another type, in single ones if its
/// characters require it.
fn quoted(text: &str) -> String {
    if is_other_type(text) || text.chars().any(|c| c.is_control()) {
        // A JSON string is a double-quoted scalar.
        return serde_json::Value::from(text).to_string();
    }
    let first = text.chars().next().unwrap_or(' ');
    let second_blank = text.chars().nth(1).is_none_or(|c| c == ' ');
    let indicator = ",[]{}#&*!|>'\"%@`".contains(first) || ("-?:".contains(first) && second_blank);
    let blank_end = text.starts_with(' ') || text.ends_with(' ');
    if indicator || blank_end || text.contains(": ") || text.contains(" #") || text.ends_with(':') {
        format!("'{}'", text.replace('\'', "''"))
    } else {
        text.to_owned()
    }
}

/// Whether this text as a plain scalar would be parsed as another type than a string.
fn is_other_type(text: &str) -> bool {
    const WORDS: &[&str] = &[
        "", "~", "<<", "=", "null", "true", "false", "y", "n", "yes", "no", "on", "off", ".inf", "-.inf",
        "+.inf", ".nan",
    ];
    let number = text.trim_start_matches(['-', '+']).replace('_', "");
    let radix = ["0x", "0o", "0b"].iter().any(|prefix| {
        number
            .strip_prefix(prefix)
            .is_some_and(|digits| !digits.is_empty() && digits.chars().all(|c| c.is_ascii_hexdigit()))
    });
    let decimal =
        number.starts_with(|c: char| c.is_ascii_digit() || c == '.') && number.parse::<f64>().is_ok();
    // YAML 1.1 parses numbers in base 60: 12:30:45.
    let base60 = number.contains(':')
        && number.starts_with(|c: char| c.is_ascii_digit())
        && number.chars().all(|c| c.is_ascii_digit() || c == ':' || c == '.');
    let date = !is_time(text)
        && text.len() >= 8
        && text.as_bytes().get(4) == Some(&b'-')
        && text.as_bytes()[..4].iter().all(u8::is_ascii_digit)
        && text.chars().all(|c| c.is_ascii_digit() || "-:.TtZz+ ".contains(c));
    WORDS.contains(&text.to_ascii_lowercase().as_str()) || radix || decimal || base60 || date
}

/// Whether it is a timestamp of RFC 3339. Cilium's rows have a time value in its place, which go-yaml writes without
/// quotes.
fn is_time(text: &str) -> bool {
    let shape = |c: char| if c.is_ascii_digit() { '0' } else { c };
    let start: String = text.chars().take(19).map(shape).collect();
    let zone =
        text.get(19..).unwrap_or_default().trim_start_matches(|c: char| c == '.' || c.is_ascii_digit());
    start == "0000-00-00T00:00:00" && (zone == "Z" || (zone.len() == 6 && zone.starts_with(['+', '-'])))
}

impl<'de> serde::Deserialize<'de> for Node {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Visitor)
    }
}

struct Visitor;

impl<'de> serde::de::Visitor<'de> for Visitor {
    type Value = Node;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Node, E> {
        Ok(Node::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Node, E> {
        Ok(Node::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Node, E> {
        Ok(Node::Number(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Node, E> {
        Ok(Node::Number(value.into()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Node, E> {
        Ok(serde_json::Number::from_f64(value).map_or(Node::Null, Node::Number))
    }

    fn visit_str<E>(self, value: &str) -> Result<Node, E> {
        Ok(Node::Text(value.to_owned()))
    }

    fn visit_seq<A: serde::de::SeqAccess<'de>>(self, mut list: A) -> Result<Node, A::Error> {
        let mut items = vec![];
        while let Some(item) = list.next_element()? {
            items.push(item);
        }
        Ok(Node::List(items))
    }

    fn visit_map<A: serde::de::MapAccess<'de>>(self, mut map: A) -> Result<Node, A::Error> {
        let mut fields = vec![];
        while let Some(field) = map.next_entry()? {
            fields.push(field);
        }
        Ok(Node::Map(fields))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_have_columns() {
        let rows = [["Name", "é", "Last"], ["a-long-name", "", ""], ["b", "xyz", "end"]];
        let rows: Vec<Vec<String>> = rows.iter().map(|row| row.map(str::to_owned).to_vec()).collect();
        assert_eq!(table(&rows), "Name          é     Last\na-long-name         \nb             xyz   end\n");
    }

    #[test]
    fn json_is_indented() {
        let text = r#"{"A":[1,{"b":"x<\"{,\\"}],"C":[],"d":{}}"#;
        let expected = "{\n  \"A\": [\n    1,\n    {\n      \"b\": \"x\\u003c\\\"{,\\\\\"\n    }\n  ],\n  \"C\": [],\n  \"d\": {}\n}\n";
        assert_eq!(json(text), expected);
    }

    #[test]
    fn yaml_is_written_as_go_does() {
        let text = r#"{"Name":"a","ports":["http","80"],"Inner":{"X":null,"y":{},"Z":[{"a":1,"b":[true]}]},"t":"[x]","e":"","m":"l1\nl2\n","when":"2026-01-01T00:00:00Z","d":"a: b","s":"- "}"#;
        let expected = "name: a\nports:\n    - http\n    - \"80\"\ninner:\n    x: null\n    \"y\": {}\n    z:\n        - a: 1\n          b:\n            - true\nt: '[x]'\ne: \"\"\nm: |\n    l1\n    l2\nwhen: 2026-01-01T00:00:00Z\nd: 'a: b'\ns: '- '\n";
        assert_eq!(yaml(text, |key| key.to_lowercase()).unwrap(), expected);
    }
}
