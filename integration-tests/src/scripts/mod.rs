//! Script tests by family: which cells a script runs against.

mod desired_devices;
mod desired_routes;
mod devices_controller;
mod dynamic_config;
mod envoy_config;
mod example;
mod exporter;
mod family;
mod health;
mod healthserver;
mod k8s;
mod k8s_tables;
mod loadbalancer;
mod metrics;
mod neighbor;
mod network;
mod policy;
mod redirectpolicy;
mod run;
mod subnet;

pub use family::{FAMILIES, Family, Isolation, family_of, family_of_path};
pub use run::{Ran, run};
