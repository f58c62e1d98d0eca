use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::documents;

fn of(text: &str) -> String {
    print(&json!({ "a": text })).strip_prefix("a: ").unwrap().strip_suffix('\n').unwrap().to_owned()
}

#[test]
fn ambiguous_strings_are_quoted() {
    for text in [
        "",
        "y",
        "No",
        "on",
        "true",
        "null",
        "~",
        "7",
        "0x1f",
        "010",
        "1_000",
        "-1.5",
        "1e3",
        ".5",
        ".inf",
        "<<",
        "12:30",
        "02:42:11:00:00:01",
        "2026-11-22",
        "2026-11-22T10:00:00Z",
        "2026-1-2 3:04:05.6",
        "2026-11-22T10:00:00+01:00",
    ] {
        assert_eq!(of(text), format!("{text:?}"));
    }
    for text in [
        "a",
        "yEs",
        "10.0.0.1",
        "10.0.0.0/8",
        "fd00::1",
        "1.2.3",
        "v1",
        "a:b",
        "a#b",
        "-a",
        "?a",
        ":a",
        "00000000-1111-4222",
        "2026-13-22",
        "1:99",
        "99:61:00",
        "0b12",
        "a, b",
        "\u{e4}\u{f6}",
        "12e",
        "<=",
    ] {
        assert_eq!(of(text), text);
    }
    for (text, written) in [
        ("a: b", "'a: b'"),
        ("a #b", "'a #b'"),
        ("a:", "'a:'"),
        ("- a", "'- a'"),
        ("-", "'-'"),
        ("*", "'*'"),
        ("it's: b", "'it''s: b'"),
        ("'a", "'''a'"),
        ("[a]", "'[a]'"),
        ("{}", "'{}'"),
        ("%", "'%'"),
        ("---", "'---'"),
        (" a", "' a'"),
        ("a ", "'a '"),
        ("a\tb", "\"a\\tb\""),
        ("\u{1f41d}", "\"\\U0001F41D\""),
        ("\u{feff}", "\"\\uFEFF\""),
        ("a\rb", "\"a\\rb\""),
    ] {
        assert_eq!(of(text), written, "{text:?}");
    }
}

#[test]
fn multi_line_texts_are_blocks() {
    assert_eq!(print(&json!({"a": "b\nc\n"})), "a: |\n  b\n  c\n");
    assert_eq!(print(&json!({"a": "b\n\nc", "d": 1})), "a: |-\n  b\n\n  c\nd: 1\n");
    assert_eq!(print(&json!({"a": "b\n\n", "d": 1})), "a: |+\n  b\n\nd: 1\n");
    assert_eq!(print(&json!({"a": " b\nc\n"})), "a: |2\n   b\n  c\n");
    assert_eq!(print(&json!({"a": "b \n"})), "a: \"b \\n\"\n");
    assert_eq!(
        print(&json!({"a": [{"b": "c\nd\n"}, ["e\nf"]]})),
        "a:\n- b: |\n    c\n    d\n- - |-\n    e\n    f\n"
    );
}

#[test]
fn lists_and_names_have_their_order_and_indent() {
    let value = json!({"b": {"c": [1, [2, 3], {"d": {}, "e": [], "f": [{"g": null}]}]}, "a10": true, "a9": 1.5, "a/b": 1e21, "A": -7});
    assert_eq!(
        print(&value),
        "A: -7\na/b: 1e+21\na9: 1.5\na10: true\nb:\n  c:\n  - 1\n  - - 2\n    - 3\n  - d: {}\n    e: []\n    f:\n    - g: null\n"
    );
    assert_eq!(print(&json!([])), "[]\n");
    assert_eq!(print(&json!([{"y": 1}])), "- \"y\": 1\n");
    assert_eq!(print(&json!("a")), "a\n");
    let long = "n".repeat(129);
    assert_eq!(print(&json!({&long: {"a": 1}})), format!("? {long}\n: a: 1\n"));
}

#[test]
fn long_lines_are_folded_at_blanks() {
    let words = "nodes are available ".repeat(6);
    let folded = of(words.trim_end());
    let lines: Vec<&str> = folded.split('\n').collect();
    assert_eq!(lines.len(), 2, "{folded}");
    assert!(
        lines[0].len() + 3 > WIDTH && lines[0].ends_with("available") && lines[1].starts_with("  nodes"),
        "{folded}"
    );
    let quoted = of(&format!("x: {}", words.trim_end()));
    assert!(quoted.starts_with("'x: ") && quoted.contains("\n  ") && quoted.ends_with('\''), "{quoted}");
    assert_eq!(of(&"x".repeat(200)), "x".repeat(200));
}

proptest! {
    /// A printed value is parsed as the same value.
    #[test]
    fn values_round_trip(value in value()) {
        let text = print(&value);
        let read = documents(&text);
        let expected = if value.is_null() { vec![] } else { vec![value] };
        let read: Vec<Value> = read.into_iter().map(|document| document.map(|document| document.value)).collect::<Result<_, _>>().unwrap();
        prop_assert_eq!(read, expected, "{}", text);
    }
}

fn value() -> impl Strategy<Value = Value> {
    let text = prop_oneof![
        "[a-z0-9.:/ #'\"-]{0,12}",
        "[ -~\n\t\u{e4}\u{1f41d}]{0,30}",
        "([a-z:#]{1,9} ?){20,40}",
        Just("y".to_owned()),
        Just("2026-11-22T10:00:00Z".to_owned()),
    ];
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        text.clone().prop_map(Value::from),
    ];
    leaf.prop_recursive(5, 40, 6, move |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
            proptest::collection::btree_map(text.clone(), inner, 0..5)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}
