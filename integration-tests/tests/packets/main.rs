//! Real packets between pods, hosts and a world outside, each test on a node of its own.

mod attacks;
mod chained;
mod endpoint_routes;
mod health_endpoint;
mod host_identity;
mod host_routing;
mod nodeport;
mod overlay;
mod pods;
mod policy;
mod policy_bad;
mod policy_first;
mod policy_ports;
mod policy_relabel;
mod policy_replace;
mod restart;
mod restart_policy;
mod service_backends;
mod service_many;
mod service_redirect;
mod service_rolling;
mod services;
mod state;
mod takeover;
mod three_nodes;
mod upgrade;
