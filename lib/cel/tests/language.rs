//! The semantics of the language, on flows.

use cel::{EvalError, Program, Schema};
use hubble_api::flow::{Endpoint, Flow, FlowType, Layer4, Policy, Tcp, Verdict, layer4::Protocol};
use prost::Message as _;

const STEPS: usize = 10_000;

fn schema() -> Schema {
    Schema::from_descriptors(hubble_api::DESCRIPTORS).unwrap()
}

fn flow() -> Flow {
    let tcp = Tcp { source_port: 40_000, destination_port: 80, flags: None };
    let policy = |name: &str| Policy { name: name.to_owned(), revision: 7, ..Policy::default() };
    Flow {
        time: Some(prost_types::Timestamp { seconds: 1_800_000_000, nanos: 500_000_000 }),
        verdict: Verdict::Dropped.into(),
        drop_reason_desc: 133,
        l4: Some(Layer4 { protocol: Some(Protocol::Tcp(tcp)) }),
        source: Some(Endpoint {
            id: 7,
            identity: 5000,
            namespace: "shop".to_owned(),
            labels: vec!["k8s:app=web".to_owned(), "k8s:tier=front".to_owned()],
            pod_name: "web-1".to_owned(),
            ..Endpoint::default()
        }),
        r#type: FlowType::L3L4.into(),
        is_reply: Some(false),
        destination_names: vec!["a.test".to_owned()],
        ingress_denied_by: vec![policy("a"), policy("b")],
        ..Flow::default()
    }
}

fn eval(text: &str) -> Result<bool, EvalError> {
    let schema = schema();
    let program = Program::compile(text, &schema, "_flow", "flow.Flow")
        .unwrap_or_else(|error| panic!("{text}: {error}"));
    program.matches(&schema, &flow().encode_to_vec(), STEPS)
}

fn refusal(text: &str) -> String {
    Program::compile(text, &schema(), "_flow", "flow.Flow").expect_err(text).to_string()
}

#[test]
fn expressions_that_are_true() {
    for text in [
        // Operators and their order.
        "1 + 2 * 3 == 7 && (1 + 2) * 3 == 9",
        "7 / 2 == 3 && -7 / 2 == -3 && 7 % 3 == 1 && -7 % 3 == -1",
        "10 - 3 - 2 == 5 && !false && !!true && --1 == 1",
        "true || false && false",
        "1 < 2 ? true : 1 / 0 == 1",
        "0x10 == 16 && 5u + 1u == 6u && 1.5e1 == 15.0 && .5 < 1.0",
        "-9223372036854775808 < 0",
        "1 < 1.5 && 2u > 1 && 1u < 1.5 && 9007199254740993 > 9007199254740992.0",
        "'b' > 'a' && b'a' < b'b' && false < true",
        "1.0 / 0.0 > 1.0 && !(0.0 / 0.0 == 0.0 / 0.0)",
        "'abc' + 'd' == 'abcd' && [1] + [2] == [1, 2] && b'a' + b'b' == b'ab'",
        // Literals.
        r#"'\u00e9\x41\101\n' == "éAA\n" && r'\n' == '\\n' && b'\xff' == b'\377'"#,
        "'''a\n'b' ''' == \"a\\n'b' \" // the end",
        "{'a': 1, 'b': 2}['b'] == 2 && {'a': 1}.a == 1 && {1: 'x'}[1] == 'x'",
        "{'a': 1, 'b': 2} == {'b': 2, 'a': 1,} && [1, 'a', null].size() == 3",
        "[1, 2, 3][1] == 2 && 2 in [1, 2] && !(3 in [1, 2]) && 'a' in {'a': 1}",
        // Functions.
        "'pod-1'.startsWith('pod') && 'pod-1'.endsWith('-1') && 'pod-1'.contains('d-') && 'pod-1'.matches('^p.d-[0-9]$')",
        "size('é') == 1 && 'é'.size() == 1 && size(b'é') == 2 && size({}) == 0",
        "int('12') == 12 && int(2.9) == 2 && int(-2.9) == -2 && uint(3) == 3u && double('1.5') == 1.5",
        "string(12) == '12' && string(true) == 'true' && string(b'a') == 'a' && bytes('a') == b'a' && int(5u) == 5",
        "duration('1h30m') == duration('5400s') && duration('-1.5s') < duration('0') && duration('1ms') > duration('999us')",
        "timestamp('1970-01-01T00:01:00Z') - timestamp(0) == duration('1m') && int(timestamp(60)) == 60",
        "string(timestamp(0)) == '1970-01-01T00:00:00Z'",
        "string(duration('1h30m')) == '5400s' && string(duration('-1500ms')) == '-1.5s'",
        "timestamp('2027-01-15T08:09:10.123Z').getFullYear() == 2027 && timestamp('2027-01-15T08:09:10Z').getMonth() == 0",
        "timestamp('2027-02-15T08:09:10Z').getDayOfYear() == 45 && timestamp('2027-01-15T08:09:10Z').getDayOfMonth() == 14",
        "timestamp('2027-01-15T08:09:10Z').getDate() == 15 && timestamp('2027-01-15T08:09:10Z').getDayOfWeek() == 5",
        "timestamp('2027-01-17T08:09:10Z').getDayOfWeek() == 0",
        "timestamp('2027-01-15T08:09:10.123Z').getHours() == 8 && timestamp('2027-01-15T08:09:10.123Z').getMinutes() == 9",
        "timestamp('2027-01-15T08:09:10.123Z').getSeconds() == 10 && timestamp('2027-01-15T08:09:10.123Z').getMilliseconds() == 123",
        "timestamp('2027-01-15T23:30:00Z').getHours('+01:00') == 0 && timestamp('2027-01-15T23:30:00Z').getDate('01:00') == 16",
        "timestamp('2027-01-01T07:30:00Z').getFullYear('-08:00') == 2026 && timestamp(0).getHours('UTC') == 0",
        "duration('90m').getHours() == 1 && duration('90m').getMinutes() == 90 && duration('-1.5s').getSeconds() == -1",
        "duration('1.25s').getMilliseconds() == 1250",
        "type(1) == int && type('a') == string && type(type(1)) == type && type(null) == null_type",
        "dyn(1) == dyn(1u) && dyn([1]) != dyn('a')",
        // Macros.
        "[1, 2].all(x, x > 0) && [].all(x, false) && ![1, 2].all(x, x > 1)",
        "[1, 2].exists(x, x > 1) && ![].exists(x, true) && [1, 2].exists_one(x, x > 1) && ![2, 2].exists_one(x, x > 1)",
        "[1, 2, 3].filter(x, x > 1).map(x, x * 2) == [4, 6] && [1, 2].map(x, x > 1, x + 1) == [3]",
        "{'a': 1}.all(key, key == 'a') && [[1], [2]].exists(x, x.exists(y, y == 2)) && [1].all(x, [2].all(x, x == 2))",
        "has({'a': 1}.a) && !has({'a': 1}.b)",
        // Errors are absorbed by what decides.
        "true || 1 / 0 == 1",
        "1 / 0 == 1 || true",
        "!(1 / 0 == 1 && false)",
        "[0, 1].exists(x, 1 / x == 1) && ![0, 2].all(x, 1 / x == 1)",
        // Messages.
        "_flow.verdict == Verdict.DROPPED && _flow.verdict == flow.Verdict.DROPPED && _flow.verdict == .flow.Verdict.DROPPED",
        "_flow.drop_reason_desc == DropReason.POLICY_DENIED && _flow.drop_reason_desc == 133",
        "_flow.source.namespace == 'shop' && _flow.source.pod_name.startsWith('web')",
        "_flow.source.identity == 5000u && _flow.source.identity > 4999 && uint(5000) == _flow.source.identity",
        "_flow.l4.TCP.destination_port == 80u && has(_flow.l4.TCP) && !has(_flow.l4.UDP) && _flow.l4.UDP.source_port == 0u",
        "has(_flow.source) && !has(_flow.destination) && _flow.destination.pod_name == '' && !has(_flow.destination.pod_name)",
        "_flow.source.labels.exists(label, label.matches('tier=fr.*')) && 'k8s:app=web' in _flow.source.labels",
        "_flow.destination_names == ['a.test'] && _flow.source_names.size() == 0 && !has(_flow.source_names)",
        "_flow.ingress_denied_by.map(policy, policy.name) == ['a', 'b'] && _flow.ingress_denied_by.all(p, p.revision == 7u)",
        "_flow.is_reply == false && !_flow.is_reply && has(_flow.is_reply) && _flow.is_reply != null",
        "_flow.time.getHours() == 8 && _flow.time.getHours('+05:45') == 13 && _flow.time.getMinutes('+05:45') == 45",
        "_flow.time == timestamp('2027-01-15T08:00:00.5Z') && _flow.time > timestamp(0) && has(_flow.time)",
        "_flow.Type == FlowType.L3_L4 && _flow.source == _flow.source && type(_flow.source) == Endpoint",
        "[1].all(Verdict, Verdict == 1)",
        "_flow.time.getHours('') == 8 && _flow.time.getHours('UTC') == 8 && _flow.time.getHours('-' + '01:00') == 7",
        // New messages.
        "Endpoint{} == _flow.destination && Endpoint{ID: 7u} != _flow.source && type(Endpoint{}) == flow.Endpoint",
        "Endpoint{pod_name: 'web-1', ID: 7u, identity: 5000u, namespace: 'shop', labels: ['k8s:app=web', 'k8s:tier=front']} == _flow.source",
        "flow.Endpoint{ID: 1u + 1u,}.ID == 2u && .flow.Endpoint{namespace: 'a' + 'b'}.namespace.size() == 2",
        "Flow{source: Endpoint{pod_name: 'a'}}.source.pod_name == 'a' && !has(Flow{}.source) && has(Flow{source: Endpoint{}}.source)",
        "Flow{verdict: Verdict.DROPPED}.verdict == 2 && Flow{destination_names: ['a', 'b']}.destination_names[1] == 'b'",
        "Flow{l4: Layer4{TCP: TCP{destination_port: 80u}}}.l4.TCP.destination_port == 80u && Flow{source: null} == Flow{}",
        "Flow{is_reply: false} != Flow{} && has(Flow{is_reply: false}.is_reply) && Flow{is_reply: null} == Flow{}",
        "[_flow.source].exists(e, e == _flow.source) && _flow.ingress_denied_by[0] == Policy{revision: 7u, name: 'a'}",
        "google.protobuf.Timestamp{seconds: 60, nanos: 5} == timestamp(60) + duration('5ns') && Flow{time: timestamp(-1)}.time == timestamp(-1)",
    ] {
        assert_eq!(eval(text), Ok(true), "{text}");
    }
}

#[test]
fn evaluations_without_a_result_are_errors() {
    for (text, error) in [
        ("9223372036854775807 + 1 > 0", EvalError::Overflow),
        ("0u - 1u > 0u", EvalError::Overflow),
        ("-(-9223372036854775808) > 0", EvalError::Overflow),
        ("-9223372036854775808 / -1 > 0", EvalError::Overflow),
        ("int(1e20) > 0", EvalError::Overflow),
        ("uint(-1) > 0u", EvalError::Overflow),
        ("timestamp(253402300799) + duration('1s') > timestamp(0)", EvalError::Overflow),
        ("1 / 0 == 1", EvalError::DivisionByZero),
        ("1u % 0u == 1u", EvalError::DivisionByZero),
        ("[1][1] == 1", EvalError::NoSuchKey),
        ("[1][-1] == 1", EvalError::NoSuchKey),
        ("{'a': 1}.b == 1", EvalError::NoSuchKey),
        ("{'a': 1, 'a': 2}.a == 1", EvalError::NoSuchKey),
        ("int('x') == 1", EvalError::Conversion),
        ("duration('1') > duration('0')", EvalError::Conversion),
        ("timestamp(0).getHours('Europe/' + 'Berlin') == 0", EvalError::Conversion),
        ("timestamp(0).getHours('+1' + ':00') == 0", EvalError::Conversion),
        ("dyn(1).getHours('UTC') == 0", EvalError::NoOverload),
        ("Endpoint{ID: 4294967296u}.ID == 0u", EvalError::Overflow),
        ("Flow{verdict: 2147483648}.verdict == 0", EvalError::Overflow),
        ("Endpoint{ID: dyn('a')}.ID == 0u", EvalError::NoOverload),
        ("Flow{source: dyn(Flow{})}.source == Endpoint{}", EvalError::NoOverload),
        ("dyn(duration('1s')).getFullYear() == 0", EvalError::NoOverload),
        ("dyn(1).getHours() == 0", EvalError::NoOverload),
        ("string(b'\\xff') == ''", EvalError::Conversion),
        ("dyn(1) + dyn('a') == dyn(1)", EvalError::NoOverload),
        ("dyn(1) < dyn('a')", EvalError::NoOverload),
        ("[1, 0].all(x, 1 / x == 1)", EvalError::DivisionByZero),
        ("1 / 0 == 1 && true", EvalError::DivisionByZero),
        ("[1, 'a'].all(x, x > 0)", EvalError::NoOverload),
    ] {
        assert_eq!(eval(text), Err(error), "{text}");
    }
    let hundred = format!("[{}]", "1,".repeat(100));
    let text = format!("{hundred}.all(a, {hundred}.all(b, {hundred}.all(c, a + b + c == 3)))");
    assert_eq!(eval(&text), Err(EvalError::TooExpensive));
    let doubled = "[1].map(x, 'aaaaaaaaaaaaaaaa')".to_owned() + &".map(x, x + x)".repeat(40) + " != ['']";
    assert_eq!(eval(&doubled), Err(EvalError::TooExpensive), "texts that double");
    let schema = schema();
    let program = Program::compile("_flow.source.ID == 1u", &schema, "_flow", "flow.Flow").unwrap();
    assert_eq!(program.matches(&schema, &[0xff; 8], STEPS), Err(EvalError::Malformed));
}

#[test]
fn refusals_have_the_place_and_the_reason() {
    for (text, error) in [
        ("", "1:1: the expression ends too early"),
        ("1 +", "1:4: the expression ends too early"),
        ("1 1", "1:3: unexpected literal"),
        ("_flow.verdict", "1:7: the result is int, not bool"),
        ("_flow.verdict ==\n  'x'", "1:15: the operator == does not take int and string"),
        ("true &&\n  _flow.source.nam == ''", "2:16: flow.Endpoint has no field nam"),
        ("other == 1", "1:1: there is no variable other"),
        ("Verdict.NONE == 1", "1:1: there is no variable Verdict"),
        ("_flow.verdict.a == 1", "1:15: int has no fields"),
        ("f(1)", "1:1: there is no function f"),
        ("size(1) == 1", "1:1: size does not take int"),
        ("duration('1s').getMonth() == 1", "1:16: getMonth does not take duration"),
        ("timestamp(0).getWeek() == 1", "1:14: there is no function getWeek"),
        ("'a'.startsWith(1)", "1:5: startsWith does not take string, int"),
        ("has(_flow)", "1:1: has takes a field: has(a.b)"),
        ("'a'.matches('(')", "1:13: the pattern is invalid: "),
        ("'a'.matches(_flow.uuid)", "1:19: the pattern of matches is no literal"),
        ("[1].all(1, true)", "1:9: the variable of a macro is a name"),
        ("[1].all(x, x)", "1:12: int is no condition"),
        ("(1).all(x, true)", "1:2: int has no elements"),
        ("Flows{} == _flow", "1:1: there is no message Flows"),
        ("Endpoint{ID: 7} == _flow.source", "1:14: the field ID is uint, not int"),
        ("Endpoint{id: 7u} == _flow.source", "1:10: flow.Endpoint has no field id"),
        ("Endpoint{ID: 7u, ID: 7u} == _flow.source", "1:18: the field ID is there twice"),
        ("Endpoint{7: 7u} == _flow.source", "1:10: the name of a field is missing"),
        ("Endpoint{ID} == _flow.source", "1:12: unexpected }"),
        ("[1]{} == _flow", "1:4: a message is made by its name: Flow{...}"),
        ("Flow{} == Endpoint{}", "1:8: the operator == does not take flow.Flow and flow.Endpoint"),
        ("timestamp(0).getHours('Europe/Nowhere') == 0", "1:23: there is no time zone Europe/Nowhere in "),
        ("timestamp(0).getHours('../UTC') == 0", "1:23: there is no time zone ../UTC in "),
        ("timestamp(0).getHours('+99:00') == 0", "1:23: +99:00 is no offset such as +02:00"),
        ("duration('1s').getHours('UTC') == 0", "1:1: getHours with a zone does not take duration"),
        ("'a", "1:1: a string has no end"),
        ("'\\q' == ''", "1:1: an escape is invalid"),
        ("9223372036854775808 > 0", "1:1: a number is too large"),
        ("if == 1", "1:1: if is a reserved word"),
        ("é == 1", "1:1: unexpected character 'é'"),
        ("_flow.extensions == null", "1:7: the field extensions has a type that expressions cannot read"),
        ("true ? 1 : 'a'", "1:6: the results of the condition are int and string"),
        ("{1.5: 1} == {}", "1:2: double is no key of a map"),
        ("a.true", "1:3: a name is missing behind the dot"),
    ] {
        let refused = refusal(text);
        assert!(refused.starts_with(error), "{text}: {refused}");
    }
    let deep = |open: &str, close: &str| open.repeat(200) + "true" + &close.repeat(200);
    for text in [
        deep("(", ")"),
        deep("[", "]"),
        deep("!", ""),
        deep("true && ", ""),
        "true ? true : ".repeat(200) + "true",
    ] {
        assert!(refusal(&text).contains("nested at most"), "{text}");
    }
    assert!(refusal(&" ".repeat(9000)).contains("at most 8192 bytes"));
}
