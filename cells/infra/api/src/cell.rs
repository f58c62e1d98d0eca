//! The wiring of the server.

use std::sync::Arc;
use std::time::Duration;

use hive::Settings;
use hive::prelude::*;
use metrics::Metrics;
use parking_lot::Mutex;
use statedb::Db;
use tokio_util::task::TaskTracker;

use crate::access::Access;
use crate::config::ApiConfig;
use crate::debug::{self, DebugSource};
use crate::layers::Shared;
use crate::limit::Limits;
use crate::measure::Measure;
use crate::off;
use crate::page::Page;
use crate::route::Route;
use crate::router::Router;
use crate::server;
use crate::socket::Socket;

/// Returns the cell of the REST server, which listens once all cells that contribute routes have started.
pub fn cell() -> Cell {
    module("api-server", "REST API on the unix socket", [config::<ApiConfig>(), invoke(new_server)])
}

#[derive(Params)]
struct ServerParams {
    config: Config<ApiConfig>,
    routes: Group<Route>,
    debug: Group<DebugSource>,
    pages: Group<Page>,
    settings: Arc<Settings>,
    metrics: Arc<Metrics>,
    db: Option<Arc<Db>>,
    lifecycle: Lifecycle,
    jobs: JobGroup,
}

fn new_server(p: ServerParams) -> anyhow::Result<()> {
    let access = Access::parse(&p.config.enable_cilium_api_server_access)?;
    for operation in access.denied_essentials() {
        tracing::warn!(operation, "Essential API is administratively disabled");
    }
    let mut routes = p.routes.to_vec();
    let find = |operation| {
        let claimed = routes.iter().find(|route| route.operation() == operation);
        claimed.cloned().unwrap_or_else(|| off::route(operation))
    };
    let debug = debug::route(find, p.settings, p.debug.to_vec());
    routes.push(debug);
    let shared = Shared {
        router: Arc::new(Router::new(routes)?),
        access: Arc::new(access),
        limits: Arc::new(Limits::new(&p.config.api_rate_limit)?),
        measure: Measure::new(&p.metrics),
        tasks: TaskTracker::new(),
        db: p.db,
        pages: p.pages.to_vec().into(),
    };
    let bound = Arc::new(Mutex::new(None));
    let (path, slot) = (p.config.socket_path.clone(), bound.clone());
    p.lifecycle
        .hook("api-server")
        .on_start(move |_| async move {
            *slot.lock() = Some(Socket::bind(&path, "socket-path")?);
            tracing::info!(socket = %path.display(), "Serving cilium API");
            Ok(())
        })
        .timeout(Duration::from_secs(10))
        .add();
    p.jobs
        .one_shot("server", move |cx: JobCx| async move {
            let socket = bound.lock().take();
            if let Some(socket) = socket {
                cx.health.ok("serving");
                let on_accept = |error: Option<&std::io::Error>| match error {
                    Some(error) => {
                        tracing::warn!(%error, "Cannot accept a connection on the API socket");
                        cx.health.degraded("Cannot accept connections", error);
                    }
                    None => cx.health.ok("serving"),
                };
                server::serve(socket, shared, cx.token().clone(), on_accept).await;
            }
            Ok(())
        })
        .grace(Duration::from_secs(15))
        .add();
    Ok(())
}
