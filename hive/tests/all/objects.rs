//! Parameters and results of constructors: extractors, results, scopes, groups, decorations, replacement.

use std::sync::Arc;

use hive::prelude::*;
use proptest::prelude::*;

#[derive(Object, Debug)]
struct Name(String);
trait Speak: Send + Sync {
    fn say(&self) -> String;
}
impl Speak for Name {
    fn say(&self) -> String {
        self.0.clone()
    }
}

fn named(name: &str) -> Arc<dyn Speak> {
    Arc::new(Name(name.to_owned()))
}

async fn started(cells: impl hive::IntoCells) -> TestHive {
    let mut hive = TestHive::new(cells);
    hive.start().await;
    hive
}

/// Starts and stops; checks that nothing is leaked.
async fn fits(cells: impl hive::IntoCells) {
    started(cells).await.finish().await;
}

#[tokio::test]
async fn every_kind_of_constructor() {
    fn plain() -> Name {
        Name("plain".to_owned())
    }
    async fn asynchronous(name: Arc<Name>) -> anyhow::Result<Arc<dyn Speak>> {
        tokio::task::yield_now().await;
        Ok(name)
    }
    let hive = started([
        provide(plain),
        provide(asynchronous),
        provide(|speak: Arc<dyn Speak>| Arc::new(speak.say().len() as u32)),
        provide(async |n: Arc<u32>| Arc::new(u64::from(*n))),
        invoke(|_: Arc<u64>| ()),
    ])
    .await;
    assert_eq!(*hive.get::<u64>(), 5);
    assert!(Arc::ptr_eq(&hive.get::<Name>(), &hive.get::<Name>()));
    hive.finish().await;
}

#[tokio::test]
async fn twelve_parameters_and_a_struct_of_thirteen() {
    #[derive(Params)]
    struct Many {
        a: Arc<u8>,
        b: Option<Arc<u16>>,
        c: Group<u32>,
        d: ModuleId,
        e: Health,
        f: Lifecycle,
        g: JobGroup,
        h: Shutdowner,
        i: (Arc<u8>, Option<Arc<String>>),
        j: Arc<u8>,
        k: Arc<u8>,
        l: Arc<u8>,
        m: Arc<hive::Settings>,
    }
    type U = Arc<u8>;
    let twelve = |a: U, _: U, _: U, _: U, _: U, _: U, _: U, _: U, _: U, _: U, _: U, l: U| assert_eq!(a, l);
    let check = |p: Many| {
        assert_eq!((*p.a, *p.i.0, *p.j, *p.k, *p.l), (7, 7, 7, 7, 7));
        assert!(p.b.is_none() && p.i.1.is_none() && p.c.is_empty());
        assert_eq!((p.d.path(), p.d.name(), p.e.path().as_str()), ("outer.inner", "inner", "outer.inner"));
        assert_eq!(p.m.iter().count(), 0);
        drop((p.f, p.g, p.h));
    };
    fits([
        supply(Arc::new(7_u8)),
        module("outer", "x", [module("inner", "x", [invoke(twelve), invoke(check)])]),
    ])
    .await;
}

/// An optional parameter with several parts consumes exactly its own, whichever of them is absent.
#[tokio::test]
async fn optional_structs_do_not_shift_their_neighbours() {
    #[derive(Params)]
    struct Pair {
        _first: Arc<u16>,
        second: Arc<u32>,
    }
    for (with_u16, with_u32) in [(false, false), (false, true), (true, false), (true, true)] {
        let mut cells = vec![supply(Arc::new(1_u8)), supply(Arc::new(9_u64))];
        if with_u16 {
            cells.push(supply(Arc::new(2_u16)));
        }
        if with_u32 {
            cells.push(supply(Arc::new(3_u32)));
        }
        cells.push(invoke(move |a: Arc<u8>, pair: Option<Pair>, b: Arc<u64>| {
            assert_eq!((*a, *b), (1, 9));
            assert_eq!(pair.map(|p| *p.second), (with_u16 && with_u32).then_some(3));
        }));
        fits(cells).await;
    }
}

#[tokio::test]
async fn results_of_every_shape() {
    #[derive(Outputs)]
    struct Both {
        name: Name,
        number: Arc<u32>,
        member: Member<&'static str>,
        members: Members<&'static str>,
        nothing: Option<Member<&'static str>>,
        absent: Option<Arc<u64>>,
    }
    fn both() -> Result<Both, std::io::Error> {
        Ok(Both {
            name: Name("n".to_owned()),
            number: Arc::new(4),
            member: Member("one"),
            members: Members(vec!["two", "three"]),
            nothing: None,
            absent: None,
        })
    }
    fits([
        provide(both),
        invoke(|name: Arc<Name>, n: Arc<u32>, group: Group<&'static str>, absent: Option<Arc<u64>>| {
            assert_eq!((name.say().as_str(), *n), ("n", 4));
            assert_eq!(group.0, ["one", "two", "three"]);
            assert!(absent.is_none());
        }),
    ])
    .await;
}

#[tokio::test]
async fn groups_keep_registration_order_and_scope() {
    let see = |expected: &'static [&'static str]| {
        invoke(move |group: Group<&'static str>| assert_eq!(group.0, expected))
    };
    fits([
        provide(|| Member("a")),
        module(
            "m",
            "x",
            [
                provide_private(|| Member("b")),
                see(&["a", "b", "c", "d"]),
                module("n", "x", [provide(|| Member("c")), see(&["a", "b", "c", "d"])]),
            ],
        ),
        provide(|| Member("d")),
        see(&["a", "c", "d"]),
    ])
    .await;
}

#[tokio::test]
async fn private_shadows_and_siblings_have_their_own() {
    let says = |expected: &'static str| invoke(move |s: Arc<dyn Speak>| assert_eq!(s.say(), expected));
    fits([
        provide(|| named("root")),
        module("a", "x", [provide_private(|| named("a")), says("a"), module("inner", "x", [says("a")])]),
        module("b", "x", [provide_private(|| named("b")), says("b")]),
        module("c", "x", [says("root")]),
    ])
    .await;
}

#[tokio::test]
async fn decorations_nest_and_do_not_leak_outside() {
    let louder = |s: Arc<dyn Speak>| named(&(s.say() + "!"));
    let says = |expected: &'static str| invoke(move |s: Arc<dyn Speak>| assert_eq!(s.say(), expected));
    fits([
        decorate(louder, [says("hi!"), decorate(louder, [says("hi!!"), module("m", "x", [says("hi!!")])])]),
        provide(|| named("hi")),
        says("hi"),
    ])
    .await;
}

#[tokio::test]
async fn one_cell_in_two_hives_builds_two_objects() {
    let cells = [provide(|| Name("x".to_owned())), invoke(|_: Arc<Name>| ())];
    let (one, two) = (started(cells.clone()).await, started(cells).await);
    assert!(!Arc::ptr_eq(&one.get::<Name>(), &two.get::<Name>()));
    one.finish().await;
    two.finish().await;
}

#[tokio::test]
async fn replacement_reaches_private_providers_and_fills_gaps() {
    fn broken() -> anyhow::Result<Arc<dyn Speak>> {
        anyhow::bail!("must not run")
    }
    let consumer = || invoke(|s: Arc<dyn Speak>| assert_eq!(s.say(), "fake"));
    for cells in [vec![module("m", "x", [provide_private(broken), consumer()])], vec![consumer()]] {
        let mut hive = TestHive::new(cells).replace::<dyn Speak>(named("fake"));
        hive.start().await;
        hive.stop().await;
    }
}

#[tokio::test]
async fn failing_and_panicking_constructors_are_named() {
    fn failing() -> anyhow::Result<Name> {
        anyhow::bail!("no route to host")
    }
    fn panicking() -> Name {
        panic!("index out of bounds")
    }
    async fn panicking_later() -> Name {
        tokio::task::yield_now().await;
        panic!("too late")
    }
    let consumer = || invoke(|_: Arc<Name>| ());
    for (cell, function, text) in [
        (provide(failing), "failing", "no route to host"),
        (provide(panicking), "panicking", "panicked: index out of bounds"),
        (provide(panicking_later), "panicking_later", "panicked: too late"),
    ] {
        let error =
            TestHive::new(module("m", "x", [cell, consumer()])).try_start().await.unwrap_err().to_string();
        assert!(error.contains(&format!("::{function} (hive/tests/all/objects.rs:")), "{error}");
        assert!(error.ends_with(&format!("in module `m` failed: {text}")), "{error}");
    }
}

#[tokio::test]
async fn consumers_are_dropped_before_their_dependencies() {
    struct Dropped(&'static str, Arc<parking_lot::Mutex<Vec<&'static str>>>);
    impl Drop for Dropped {
        fn drop(&mut self) {
            self.1.lock().push(self.0);
        }
    }
    #[expect(dead_code, reason = "held for their drops")]
    struct Outer(Dropped, Arc<Dropped>);
    let log: Arc<parking_lot::Mutex<Vec<&'static str>>> = Arc::default();
    let (inner, outer) = (log.clone(), log.clone());
    let hive = started([
        provide(move || Arc::new(Dropped("inner", inner.clone()))),
        provide(move |d: Arc<Dropped>| Arc::new(Outer(Dropped("outer", outer.clone()), d))),
        invoke(|_: Arc<Outer>| ()),
    ])
    .await;
    hive.kill();
    assert_eq!(*log.lock(), ["outer", "inner"]);
}

/// The dependencies of each constructor of the next test.
const NEEDS: [&[usize]; 6] = [&[], &[0], &[0, 1], &[2, 0], &[], &[3]];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// In any order of cells, constructors run after their dependencies, at most once, and only if needed; their hooks
    /// start in that order and stop in reverse.
    #[test]
    fn any_order_of_cells_builds_the_same(order in Just((0..8_usize).collect::<Vec<_>>()).prop_shuffle()) {
        #[derive(Object)]
        struct Built<const I: usize>(usize);
        type B<const I: usize> = Arc<Built<I>>;
        fn built<const I: usize>(lifecycle: &Lifecycle, value: usize) -> Built<I> {
            lifecycle.hook(I.to_string()).on_start(|_| async { Ok(()) }).on_stop(|_| async { Ok(()) }).add();
            Built(value)
        }
        let cells = [
            provide(|l: Lifecycle| built::<0>(&l, 1)),
            provide(async |l: Lifecycle, a: B<0>| built::<1>(&l, a.0 * 2)),
            provide(|l: Lifecycle, a: B<0>, b: B<1>| built::<2>(&l, a.0 + b.0 * 10)),
            provide(|l: Lifecycle, c: B<2>, a: B<0>| built::<3>(&l, c.0 * 10 + a.0)),
            provide(|l: Lifecycle| built::<4>(&l, 0)),
            provide(|l: Lifecycle, d: B<3>| built::<5>(&l, d.0)),
            invoke(|d: B<3>| assert_eq!(d.0, 211)),
            invoke(|c: B<2>, d: B<3>| assert_eq!((c.0, d.0), (21, 211))),
        ];
        let shuffled: Vec<Cell> = order.iter().map(|i| cells[*i].clone()).collect();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let (started, stopped) = runtime.block_on(async {
            let mut hive = started(shuffled).await;
            hive.stop().await;
            (hive.hook_order(), hive.stop_order())
        });
        let ran: Vec<usize> = started.iter().map(|name| name.parse().unwrap()).collect();
        let mut sorted = ran.clone();
        sorted.sort_unstable();
        prop_assert_eq!(sorted, [0, 1, 2, 3], "what is needed, once each");
        for (position, node) in ran.iter().enumerate() {
            prop_assert!(NEEDS[*node].iter().all(|need| ran[..position].contains(need)), "{:?}", ran);
        }
        prop_assert!(started.iter().rev().eq(&stopped));
    }
}

#[tokio::test]
async fn a_result_with_fewer_values_than_declared_is_named() {
    #[derive(Object)]
    struct Promised;
    struct Liar;
    impl hive::Outputs for Liar {
        fn keys(outs: &mut hive::constructor::Outs) {
            Promised::keys(outs);
        }

        fn emit(self, _: &mut hive::constructor::Sink) -> anyhow::Result<()> {
            Ok(())
        }
    }
    fn new_liar() -> Liar {
        Liar
    }
    let cells = [provide(new_liar), invoke(|_: Arc<Promised>| ())];
    let error = Hive::builder(cells).build().unwrap().populate().await.unwrap_err().to_string();
    assert!(error.contains("new_liar"), "{error}");
    assert!(error.contains("its result gives 0 values and declares 1"), "{error}");
}

/// The library under another path, as a facade has it. Its trait in the place of hive's shows that derives use the path.
mod facade {
    pub(crate) mod inner {
        pub(crate) use hive::*;

        pub(crate) trait Object {}
    }
}

#[derive(hive::Object)]
#[hive(crate = "facade::inner")]
struct Foreign;

#[derive(hive::Object)]
#[hive(crate = "hive")]
struct Greeter(String);

#[derive(hive::config::FlagValue, Clone, Debug)]
#[hive(crate = "facade::inner")]
enum Tone {
    Kind,
    Curt,
}

#[derive(hive::Config, Clone, Debug)]
#[hive(crate = "facade::inner")]
struct Manners {
    /// The tone of greetings
    #[flag(default = "curt")]
    tone: Tone,
}

#[derive(hive::Params)]
#[hive(crate = "facade::inner")]
struct Needs {
    manners: Config<Manners>,
}

#[derive(hive::Outputs)]
#[hive(crate = "facade::inner")]
struct Gives {
    greeter: Greeter,
}

#[tokio::test]
async fn derives_work_where_the_library_has_another_path() {
    fn is_of_the_facade<T: facade::inner::Object>(_: &T) {}
    is_of_the_facade(&Foreign);

    let new = |Needs { manners }: Needs| Gives {
        greeter: Greeter(match manners.tone {
            Tone::Kind => "welcome".to_owned(),
            Tone::Curt => "hi".to_owned(),
        }),
    };
    let hive = started([config::<Manners>(), provide(new), invoke(|_: Arc<Greeter>| ())]).await;
    assert_eq!(hive.get::<Greeter>().0, "hi");
    hive.finish().await;
}
