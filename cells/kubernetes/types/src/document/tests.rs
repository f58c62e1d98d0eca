use proptest::prelude::*;
use serde_json::json;

use super::*;

fn values(text: &str) -> Vec<Value> {
    documents(text).into_iter().map(|document| document.unwrap().value).collect()
}

fn fault(text: &str) -> String {
    let faults: Vec<String> =
        documents(text).into_iter().filter_map(Result::err).map(|broken| broken.to_string()).collect();
    assert_eq!(faults.len(), 1, "{text:?}: {faults:?}");
    faults.into_iter().next().unwrap()
}

#[test]
fn scalars_are_those_of_kubectl() {
    let text = "[a, 1, -2, 010, 0x1f, 1_000, 1.5, 1e3, yes, Off, ~, '1', \"on\", 08, 2026-11-21, 1.2.3, 10.0.0.1, 0o17, +5, '']";
    assert_eq!(
        values(text),
        [json!([
            "a",
            1,
            -2,
            8,
            31,
            1000,
            1.5,
            1000.0,
            true,
            false,
            null,
            "1",
            "on",
            8.0,
            "2026-11-21",
            "1.2.3",
            "10.0.0.1",
            15,
            5,
            ""
        ])]
    );
    assert_eq!(values("a: !!str 5\nb: !!int 5\nc: |\n  x\n"), [json!({"a": "5", "b": 5, "c": "x\n"})]);
    assert_eq!(
        values("a: 18446744073709551615\nb: -9223372036854775808"),
        [json!({"a": u64::MAX, "b": i64::MIN})]
    );
}

#[test]
fn a_number_is_the_same_in_both_languages() {
    // By default, the JSON parser's result differs in the last bit.
    for number in ["37777778778777787787777777", "3.7777778778777787e+25"] {
        assert_eq!(values(&format!("a: {number}")), [json!({"a": 3.7777778778777787e25})]);
    }
    assert_eq!(values("{\"a\": 3.7777778778777787e+25}"), [json!({"a": 3.7777778778777787e25})]);
}

#[test]
fn a_file_has_many_documents() {
    let text = "\u{feff}# head\n---\n# nothing\n---\na: 1\n--- # second\nb: 2\n...\n---\n{\"c\": 3}\n{\"d\":\n4}\n--- \n---\n";
    let found: Vec<_> =
        documents(text).into_iter().map(|d| d.map(|d| (d.number, d.line, d.value)).unwrap()).collect();
    assert_eq!(
        found,
        [
            (1, 5, json!({"a": 1})),
            (2, 7, json!({"b": 2})),
            (3, 10, json!({"c": 3})),
            (4, 11, json!({"d": 4}))
        ]
    );
    assert!(documents("").is_empty());
    assert!(documents("%YAML 1.2\n---\n").is_empty());
    assert_eq!(values("a: |\n  ---\n  x\n"), [json!({"a": "---\nx\n"})]);
}

#[test]
fn a_broken_document_leaves_the_others() {
    let text = "a: 1\n---\nb: [\n---\nc: {\n---\nd: 4\n---\n{\"e\": 5}\n{\"f\":\n}\n";
    let documents = documents(text);
    let good: Vec<&Value> = documents.iter().flatten().map(|document| &document.value).collect();
    assert_eq!(good, [&json!({"a": 1}), &json!({"d": 4}), &json!({"e": 5})]);
    let broken: Vec<(usize, usize)> =
        documents.iter().filter_map(|d| d.as_ref().err()).map(|b| (b.number, b.line)).collect();
    assert_eq!(broken.iter().map(|b| b.0).collect::<Vec<_>>(), [2, 3, 6]);
    assert_eq!(broken[2].1, 11);
}

#[test]
fn faults_name_document_line_and_path() {
    assert_eq!(fault("a:\n  b: 1\n  b: 2"), "document 1, line 3: a.b: is given twice; remove one");
    assert_eq!(
        fault("{\"a\": 1,\n \"a\": 2}"),
        "document 1, line 2: is no JSON: \"a\" is given twice; remove one at line 2 column 4"
    );
    assert_eq!(fault("on: 1"), "document 1, line 1: the key \"on\" is no string in YAML; put it in quotes");
    assert_eq!(
        fault("a: !Ref x"),
        "document 1, line 1: a: the tag !Ref has no meaning for this value; remove it"
    );
    assert_eq!(
        fault("a: .nan"),
        "document 1, line 1: a: .nan is a number that JSON does not have; write another one"
    );
    assert_eq!(fault("? [a]\n: b"), "document 1, line 1: has a key that is no string; write a string");
    assert_eq!(
        documents_of_bytes(b"a: 1\nb: \xff").remove(0).unwrap_err().to_string(),
        "document 1, line 2: is not UTF-8; write the file in that encoding"
    );
}

#[test]
fn lines_of_fields_are_known() {
    let text = "# head\n---\na:\n  b:\n  - c: 1\n    \"d/e\": 2\n";
    let document = documents(text).remove(0).unwrap();
    for (path, line) in
        [("a", 3), ("a.b", 4), ("a.b[0].c", 5), ("a.b[0][\"d/e\"]", 6), ("a.b[7].x", 4), ("z", 3)]
    {
        assert_eq!(document.lines().of(path), line, "{path}");
    }
    let json = documents("{\"a\":\n {\"b\": 1}}").remove(0).unwrap();
    assert_eq!(json.lines().of("a.b"), 2);
}

#[test]
fn aliases_and_merges_work() {
    let text = "base: &b {x: 1, y2: [1]}\nother:\n  <<: *b\n  x: 2\nagain: *b\nboth:\n  <<: [*b, {z: 3}]\n";
    assert_eq!(
        values(text),
        [json!({
            "base": {"x": 1, "y2": [1]}, "other": {"x": 2, "y2": [1]}, "again": {"x": 1, "y2": [1]},
            "both": {"x": 1, "y2": [1], "z": 3},
        })]
    );
    assert!(fault("a: &a [*a]").contains("alias of something that it is a part of"));
    assert!(fault("a: *b").contains("is no YAML"));
    assert!(fault("a: 1\n<<: 2").contains("<< takes a mapping"));
}

#[test]
fn expansion_of_aliases_is_bounded() {
    let mut laughs = "a0: &a0 [lol, lol, lol, lol, lol, lol, lol, lol, lol]\n".to_owned();
    for n in 1..30 {
        let list = vec![format!("*a{}", n - 1); 9].join(", ");
        laughs.push_str(&format!("a{n}: &a{n} [{list}]\n"));
    }
    assert!(fault(&laughs).contains("aliases make the file too big"));
    // The bound applies to all documents of a file together.
    let small = "a: &a [x, x, x, x, x, x, x, x]\nb: &b [*a, *a, *a, *a, *a, *a, *a, *a]\nc: [*b, *b, *b, *b, *b, *b]\n---\n";
    let found = documents(&small.repeat(1000));
    assert_eq!(found.len(), 1000);
    let read = found.iter().flatten().count();
    assert!((50..150).contains(&read), "{read} of 1000 documents are read");
    for (open, close) in [("[", "]"), ("{a: ", "}")] {
        let deep = |levels| fault(&format!("a: {}1{}", open.repeat(levels), close.repeat(levels)));
        assert!(deep(100).contains("lies deeper than 64 levels"));
        let fault = deep(100_000);
        assert!(["64 levels", "recursion limit"].iter().any(|limit| fault.contains(limit)), "{fault}");
        let cut = open.repeat(100_000);
        assert_eq!(documents(&cut).len(), 1);
    }
    let json = format!("{}1{}", "{\"a\":".repeat(100_000), "}".repeat(100_000));
    assert!(fault(&json).contains("is no JSON"));
    let block: String = (0..5000).map(|n| format!("{}- \n", " ".repeat(n))).collect();
    assert_eq!(documents(&block).len(), 1);
}

#[test]
fn parsing_time_is_linear_for_any_structure() {
    let shapes = [
        "- ",
        "- \n",
        "? ",
        "? a\n",
        "a: ",
        "a:\n ",
        "[",
        "{",
        "[]",
        "[a,",
        "{a: ",
        "{a: b}, ",
        "'",
        "\"",
        "\"\\\n",
        "a\n",
        "a ",
        "a b\n",
        "#\n",
        "# ",
        "&a ",
        "&a [",
        "*a ",
        "!!str ",
        "! ",
        "%A\n",
        "---\n",
        "--- a\n",
        "...\n",
        "|\n",
        ">\n ",
        "|\n a\n",
        "\n",
        " \n",
        "\t",
        "\r",
        "<<: {}\n",
        "{\"a\":",
        "[\"a\",",
        "\u{e9}",
        "a: |\n  b\n",
        "- a: 1\n  b: 2\n",
        "{\"a\": 1}\n",
    ];
    for shape in shapes {
        for text in [
            shape.repeat((128 << 10) / shape.len()),
            format!("a: {}", shape.repeat((128 << 10) / shape.len())),
        ] {
            let begin = std::time::Instant::now();
            documents(&text);
            // At most a third of a second without optimization; a non-linear algorithm takes minutes.
            assert!(
                begin.elapsed() < std::time::Duration::from_secs(10),
                "{shape:?} took {:?}",
                begin.elapsed()
            );
        }
    }
}

#[test]
fn lists_are_split_into_items() {
    let text = "kind: List\napiVersion: v1\nitems:\n- {kind: Pod}\n- {kind: Namespace}\n---\nkind: PodList\nitems: [{}]\n---\nkind: Pod\nitems: []\n";
    let documents: Vec<Document> = documents(text).into_iter().map(Result::unwrap).collect();
    let kinds: Vec<_> =
        documents.iter().flat_map(|d| d.manifests()).map(|m| (m.path.join("spec.a"), m.kind)).collect();
    assert_eq!(
        kinds,
        [
            ("items[0].spec.a".to_owned(), "Pod"),
            ("items[1].spec.a".to_owned(), "Namespace"),
            ("items[0].spec.a".to_owned(), "Pod"),
            ("spec.a".to_owned(), "Pod")
        ]
    );
    assert_eq!(ItemPath(Some(1)).join(""), "items[1]");
}

proptest! {
    /// No input panics, and every document has its position.
    #[test]
    fn any_bytes_are_parsed_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        check(&bytes);
    }

    /// The same with tokens of YAML.
    #[test]
    fn any_yaml_tokens_are_parsed_without_panic(words in prop::collection::vec(prop::sample::select(WORDS), 0..60)) {
        check(words.concat().as_bytes());
    }

    /// JSON round-trips through both parsers.
    #[test]
    fn json_round_trips(value in tree()) {
        let value = json!({ "v": value });
        let text = serde_json::to_string_pretty(&value).unwrap();
        prop_assert_eq!(values(&text), vec![value.clone()]);
        let as_yaml = yaml::read(&text, &mut 0).map_err(|fault| TestCaseError::fail(fault.problem.to_string()))?;
        prop_assert_eq!(as_yaml.into_iter().flatten().map(|read| read.value).collect::<Vec<_>>(), vec![value]);
    }
}

const WORDS: &[&str] = &[
    "a",
    ": ",
    "- ",
    "\n",
    "  ",
    "---",
    "...",
    "\n---\n",
    "[",
    "]",
    "{",
    "}",
    ",",
    "&x ",
    "*x",
    "<<: ",
    "|\n",
    ">-\n",
    "'",
    "\"",
    "#",
    "!!str ",
    "!x ",
    "? ",
    "1",
    ".5",
    "0x",
    "%YAML 1.1\n",
    "\t",
    "\u{feff}",
    "\r\n",
    "\u{0}",
    "\u{e9}",
    "yes",
    "~",
    "@",
    "`",
    "kind: List\n",
    "items:\n",
];

fn check(bytes: &[u8]) {
    for (at, document) in documents_of_bytes(bytes).into_iter().enumerate() {
        match document {
            Ok(document) => {
                assert_eq!(document.number, at + 1);
                document.manifests();
                document.lines().of("a[0].b");
            }
            Err(broken) => assert_eq!(broken.number, at + 1),
        }
    }
}

fn tree() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        "[ -~]{0,12}".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 32, 5, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
            prop::collection::btree_map("[a-z/. ]{1,6}", inner, 0..5)
                .prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    })
}
