//! A group: each cell contributes routes, the router has all of them and knows none of the cells.

#![expect(clippy::print_stdout, reason = "the program prints its result")]

use std::collections::BTreeMap;
use std::sync::Arc;

use hive::prelude::*;

type Handler = Arc<dyn Fn() -> String + Send + Sync>;

#[derive(Clone)]
struct Route {
    path: &'static str,
    handler: Handler,
}

impl Route {
    fn new(path: &'static str, handler: impl Fn() -> String + Send + Sync + 'static) -> Self {
        Route { path, handler: Arc::new(handler) }
    }
}

#[derive(Object)]
struct Router(BTreeMap<&'static str, Handler>);

fn new_router(routes: Group<Route>) -> anyhow::Result<Router> {
    let mut router = BTreeMap::new();
    for Route { path, handler } in routes {
        anyhow::ensure!(router.insert(path, handler).is_none(), "two routes have the path {path}");
    }
    Ok(Router(router))
}

impl Router {
    fn answer(&self, path: &str) -> Option<String> {
        self.0.get(path).map(|handler| handler())
    }
}

fn users() -> Cell {
    module("users", "Who may log in", [provide(|| Member(Route::new("/users", || "ada, grace".into())))])
}

/// A cell may contribute several members.
fn version() -> Cell {
    let routes = || {
        let version = Route::new("/version", || env!("CARGO_PKG_VERSION").into());
        let health = Route::new("/health", || "ok".into());
        Members(vec![version, health])
    };
    module("version", "What runs here", [provide(routes)])
}

fn router() -> Cell {
    module("router", "Answers by path", [provide(new_router), invoke(|_: Arc<Router>| ())])
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let mut hive = Hive::builder([router(), users(), version()]).process("ROUTES_").build()?;
    hive.populate().await?;
    let router = hive.get::<Router>().expect("an invocation needs it");
    for path in &hive.arguments().words {
        println!("{path}: {}", router.answer(path).as_deref().unwrap_or("not found"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_router_has_the_routes_of_the_cells_that_are_listed() {
        let answers = async |cells: Vec<Cell>| {
            let mut hive = Hive::builder(cells).build().unwrap();
            hive.populate().await.unwrap();
            let router = hive.get::<Router>().unwrap();
            ["/users", "/health"].map(|path| router.answer(path))
        };
        let (ada, ok) = (Some("ada, grace".to_owned()), Some("ok".to_owned()));
        assert_eq!(answers(vec![router(), users(), version()]).await, [ada.clone(), ok]);
        assert_eq!(answers(vec![users(), router()]).await, [ada, None]);
    }

    #[tokio::test]
    async fn two_routes_of_one_path_are_an_error() {
        let again = module("again", "x", [provide(|| Member(Route::new("/users", || "".into())))]);
        let mut hive = Hive::builder([router(), users(), again]).build().unwrap();
        let error = hive.populate().await.unwrap_err().to_string();
        assert!(error.contains("two routes have the path /users"), "{error}");
    }
}
