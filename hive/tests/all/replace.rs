//! Values with which tests replace providers, and decorators.

use std::sync::Arc;

use hive::prelude::*;

trait Speak: Send + Sync {
    fn say(&self) -> String;
}
struct Name(String);
impl Speak for Name {
    fn say(&self) -> String {
        self.0.clone()
    }
}

fn named(name: &str) -> Arc<dyn Speak> {
    Arc::new(Name(name.to_owned()))
}

/// Returns a cell that reports the received value in its module's health.
fn listen() -> Cell {
    invoke(|speak: Arc<dyn Speak>, health: Health| health.ok(speak.say()))
}

fn louder(speak: Arc<dyn Speak>) -> Arc<dyn Speak> {
    named(&(speak.say() + "!"))
}

async fn heard<const N: usize>(mut hive: TestHive, modules: [&str; N]) -> [String; N] {
    hive.start().await;
    let heard = modules.map(|module| hive.health(module).message);
    hive.stop().await;
    heard
}

/// Returns two modules with a private provider each, and one with an exported provider.
fn cells() -> [Cell; 3] {
    let own = |name: &'static str| provide_private(move || named(name));
    [
        module("a", "x", [own("a"), listen(), module("inner", "x", [own("a.inner"), listen()])]),
        module("ab", "x", [own("ab"), listen()]),
        module("root", "x", [provide(|| named("root")), listen()]),
    ]
}

#[tokio::test]
async fn in_one_module_only() {
    let all = ["a", "a.inner", "ab", "root"];
    let hive = TestHive::new(cells()).replace_in("a.inner", named("fake"));
    assert_eq!(heard(hive, all).await, ["a", "fake", "ab", "root"]);
    // A module includes its submodules, not modules whose names only have the same prefix.
    let hive = TestHive::new(cells()).replace_in("a", named("fake"));
    assert_eq!(heard(hive, all).await, ["fake", "fake", "ab", "root"]);
    // A module's export is replaced for all cells.
    let hive = TestHive::new([cells().to_vec(), vec![module("c", "x", listen())]].concat());
    let hive = hive.replace_in("root", named("fake"));
    assert_eq!(heard(hive, ["a", "root", "c"]).await, ["a", "fake", "fake"]);
    // The last replacement takes effect; one for the whole hive is wider than one for a module.
    let hive = TestHive::new(cells()).replace(named("all")).replace_in("root", named("x"));
    let error = { hive }.try_start().await.unwrap_err().to_string();
    assert!(error.contains("nothing to replace in module `root`"), "{error}");
}

#[tokio::test]
async fn an_absent_provider_cannot_be_replaced() {
    let mut hive = TestHive::new(cells()).replace_in("a.iner", named("fake"));
    let text = hive.try_start().await.unwrap_err().to_string();
    assert!(text.contains("nothing to replace in module `a.iner`: Arc<dyn all::replace::Speak>"), "{text}");
    assert!(text.contains("asked for at hive/tests/all/replace.rs:"), "{text}");
    assert!(text.ends_with("hint: there is no such module; did you mean `a.inner`?"), "{text}");

    let mut hive = TestHive::new(cells()).replace_in("ab", Arc::new(7_u8));
    let text = hive.try_start().await.unwrap_err().to_string();
    assert!(
        text.ends_with("hint: nothing provides it; for a trait write `.replace_in::<dyn Trait>(..)`"),
        "{text}"
    );

    let cells = [module("kv", "x", provide(|| named("kv"))), module("api", "x", listen())];
    let mut hive = TestHive::new(cells).replace_in("api", named("fake"));
    let text = hive.try_start().await.unwrap_err().to_string();
    assert!(text.contains("hint: it is provided by all::replace::"), "{text}");
    assert!(text.ends_with("in module `kv`"), "{text}");
}

/// Without `::<dyn Speak>` the fake's own type is replaced, and the test would run against the real object.
#[tokio::test]
async fn an_unused_replacement_is_an_error() {
    let mut hive = TestHive::new(cells()).replace(Arc::new(Name("fake".to_owned())));
    let text = hive.try_start().await.unwrap_err().to_string();
    let begin = "1 fault in the graph:\n  - nothing gives or takes Arc<all::replace::Name>, replaced at hive/tests/all/replace.rs:";
    assert!(text.starts_with(begin), "{text}");
    assert!(text.ends_with("hint: for a trait write `.replace::<dyn Trait>(..)`"), "{text}");
    let hive = TestHive::new(cells()).replace::<dyn Speak>(Arc::new(Name("fake".to_owned())));
    assert_eq!(heard(hive, ["a", "root"]).await, ["fake", "fake"]);
    // Needed but not provided; optional; provided but not used.
    let hive = TestHive::new(module("m", "x", listen())).replace(named("fake"));
    assert_eq!(heard(hive, ["m"]).await, ["fake"]);
    for cell in [invoke(|_: Option<Arc<u8>>| ()), provide(|| Arc::new(7_u8))] {
        let mut hive = TestHive::new(cell).replace(Arc::new(8_u8));
        hive.start().await;
        hive.stop().await;
    }
}

#[tokio::test]
async fn a_value_is_supplied() {
    let hive = TestHive::new(module("m", "x", listen())).supply(named("supplied"));
    assert_eq!(heard(hive, ["m"]).await, ["supplied"]);
    // An error names the test's own line.
    let mut hive = TestHive::new(provide(|| named("real"))).supply(named("supplied"));
    let text = hive.try_start().await.unwrap_err().to_string();
    assert_eq!(text.matches("(hive/tests/all/replace.rs:").count(), 2, "{text}");
}

#[tokio::test]
async fn a_replacement_is_decorated_like_the_original_provider() {
    let cells = [decorate_all(louder), provide(|| named("real")), module("m", "x", listen())];
    let hive = TestHive::new(cells).replace(named("fake"));
    assert_eq!(heard(hive, ["m"]).await, ["fake!"]);
}

#[tokio::test]
async fn decorated_for_the_whole_hive() {
    // Declared deep inside of a decoration of its own: decorators nest by scope, not by place of declaration.
    let quieter = |speak: Arc<dyn Speak>| named(&speak.say().to_lowercase());
    let provider = module("provider", "x", [provide(|| named("Hi")), listen()]);
    let wrapped = decorate(quieter, module("wrapped", "x", [listen(), decorate_all(louder)]));
    let shadow = module("shadow", "x", [provide_private(|| named("Own")), listen()]);
    let inside = decorate(quieter, module("inside", "x", [provide_private(|| named("Near")), listen()]));
    let hive = TestHive::new([provider, wrapped, shadow, inside]);
    let modules = ["provider", "wrapped", "shadow", "inside"];
    assert_eq!(heard(hive, modules).await, ["Hi!", "hi!", "Own", "Near"]);
}

#[tokio::test]
async fn a_decorated_group() {
    let sorted = |group: Group<&'static str>| {
        let mut members = group.0;
        members.sort_unstable();
        Members(members)
    };
    let see = || invoke(|group: Group<&'static str>, health: Health| health.ok(group.0.join(" ")));
    let cells = [
        provide(|| Member("c")),
        module("plain", "x", see()),
        decorate(
            sorted,
            [module("sorted", "x", see()), module("more", "x", [see(), provide_private(|| Member("a"))])],
        ),
        provide(|| Member("b")),
    ];
    let heard = heard(TestHive::new(cells), ["plain", "sorted", "more"]).await;
    assert_eq!(heard, ["c b", "b c", "b c a"]);
}

#[test]
fn two_decorators_for_the_whole_hive_are_ambiguous() {
    let cells = [decorate_all(louder), module("m", "x", decorate_all(louder)), provide(|| named("x"))];
    let text = hive::validate(cells).unwrap_err().to_string();
    assert!(
        text.starts_with("1 fault in the graph:\n  - ambiguous Arc<dyn all::replace::Speak>\n"),
        "{text}"
    );
    assert!(text.contains("    decorated by all::replace::louder (hive/tests/all/replace.rs:"), "{text}");
    assert!(
        text.ends_with(" in module `m`\n    hint: make one decorator of both, or nest them with `decorate`")
    );
}
