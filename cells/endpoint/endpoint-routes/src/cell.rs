//! The wiring.

use std::sync::Arc;

use endpoints::Endpoint;
use hive::prelude::*;
use routes::Routes;
use statedb::Table;
use tunnel::EndpointRoutesConfig;

use crate::follow::{Follower, report_unserved};

/// Name of the initializer, as in Cilium.
const INITIALIZER: &str = "per-endpoint-routes";

/// Keeps the routes to pods by their interfaces.
pub fn cell() -> Cell {
    module("endpoint-routes", "Routes to pods by their interfaces", [invoke(follow)])
}

#[derive(Params)]
struct FollowParams {
    config: Config<EndpointRoutesConfig>,
    endpoints: Arc<Table<Endpoint>>,
    routes: Arc<Routes>,
    jobs: JobGroup,
}

fn follow(p: FollowParams) {
    let endpoints = p.endpoints;
    if !p.config.enable_endpoint_routes {
        p.jobs
            .one_shot("unserved-endpoint-routes", move |cx| async move {
                report_unserved(&endpoints, &cx).await;
                Ok(())
            })
            .add();
        return;
    }
    let initializer = p.routes.register_initializer(INITIALIZER);
    let follower = Follower { endpoints, routes: p.routes };
    p.jobs
        .one_shot("endpoint-routes", move |cx| async move {
            follower.run(&cx, initializer).await;
            Ok(())
        })
        .add();
}
