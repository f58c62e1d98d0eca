//! Shaku components together with hive constructors, in either direction.

use std::collections::HashMap;
use std::sync::Arc;

use hive::prelude::*;
use hive::{GraphError, validate};
use hive_shaku::{Dep, ShakuDeps, component};
use shaku::{Component, HasComponent, Interface};

trait Clock: Interface {
    fn now(&self) -> u64;
}
trait Handler: Interface {
    fn path(&self) -> String;
}
trait Api: Interface {
    fn call(&self) -> String;
}

#[derive(Component, ShakuDeps)]
#[shaku(interface = Clock)]
struct Fixed {
    #[shaku(default = 42)]
    time: u64,
}
impl Clock for Fixed {
    fn now(&self) -> u64 {
        self.time
    }
}

#[derive(Component, ShakuDeps)]
#[shaku(interface = Handler)]
struct Hello {
    #[shaku(default = "/hello".to_owned())]
    path: String,
}
impl Handler for Hello {
    fn path(&self) -> String {
        self.path.clone()
    }
}

/// A component that injects an interface, a plain struct of the hive, all handlers, and handlers by name.
#[derive(Component, ShakuDeps)]
#[shaku(interface = Api)]
struct ApiImpl {
    #[shaku(inject)]
    clock: Arc<dyn Clock>,
    #[shaku(inject)]
    limit: Arc<u32>,
    #[shaku(inject)]
    handlers: Vec<Arc<dyn Handler>>,
    #[shaku(inject)]
    by_name: HashMap<&'static str, Arc<dyn Handler>>,
}
impl Api for ApiImpl {
    fn call(&self) -> String {
        let paths: Vec<_> = self.handlers.iter().map(|handler| handler.path()).collect();
        format!("{} {} {paths:?} {}", self.clock.now(), self.limit, self.by_name["bye"].path())
    }
}

struct Bye;
impl Handler for Bye {
    fn path(&self) -> String {
        "/bye".to_owned()
    }
}

#[tokio::test]
async fn components_consume_from_and_provide_to_the_hive() {
    fn bye() -> Arc<dyn Handler> {
        Arc::new(Bye)
    }
    let cells = module(
        "legacy",
        "Components written for shaku",
        [
            component::<ApiImpl>(),
            component::<Fixed>(),
            component::<Hello>(),
            provide(|hello: Arc<dyn Handler>| Member(hello)),
            provide(async || {
                tokio::task::yield_now().await;
                (Member(bye()), Member(("bye", bye())))
            }),
            supply(Arc::new(7_u32)),
        ],
    );
    let mut hive = TestHive::needing::<dyn Api>(cells);
    hive.start().await;
    assert_eq!(hive.get::<dyn Api>().call(), "42 7 [\"/hello\", \"/bye\"] /bye");
    hive.stop().await;
}

#[test]
fn missing_dependencies_are_found_before_construction() {
    let error = validate([component::<ApiImpl>(), invoke(|_: Arc<dyn Api>| ())]).unwrap_err();
    let missing: Vec<_> = error
        .graph()
        .iter()
        .map(|fault| match fault {
            GraphError::Missing { key, .. } => key.short(),
            other => other.to_string(),
        })
        .collect();
    assert_eq!(missing, ["Arc<dyn Clock>", "Arc<u32>"], "groups may be empty");
}

#[tokio::test]
async fn a_forgotten_field_is_an_error_of_the_constructor() {
    #[derive(Component)]
    #[shaku(interface = Api)]
    struct ByHand {
        #[shaku(inject)]
        clock: Arc<dyn Clock>,
    }
    impl Api for ByHand {
        fn call(&self) -> String {
            self.clock.now().to_string()
        }
    }
    impl ShakuDeps for ByHand {
        fn deps() -> Vec<Dep> {
            vec![]
        }
    }
    let error =
        TestHive::needing::<dyn Api>(component::<ByHand>()).try_start().await.unwrap_err().to_string();
    assert!(error.contains("Clock> is injected but not among `ShakuDeps`"), "{error}");
}

mod whole {
    use super::*;

    shaku::module! {
        pub(super) Whole {
            components = [Fixed],
            providers = []
        }
    }
}

#[tokio::test]
async fn a_whole_shaku_module_is_one_constructor() {
    let import = || -> Arc<dyn Clock> {
        let module = whole::Whole::builder().build();
        module.resolve()
    };
    let mut hive =
        TestHive::new([provide(import), invoke(|clock: Arc<dyn Clock>| assert_eq!(clock.now(), 42))]);
    hive.start().await;
    hive.stop().await;
}
