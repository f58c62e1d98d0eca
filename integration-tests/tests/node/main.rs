//! The agent as a process on a node: its options, inputs, failures, privileges, memory and leftovers.

mod bad_input;
mod bad_kubeconfig;
mod bad_manifests;
mod cleanup;
mod connectivity;
mod descriptors;
mod failures;
mod health_checks;
mod health_endpoint;
mod iptables;
mod k8s_tracker;
mod label_filter;
mod live_options;
mod many_endpoints;
mod memory_limit;
mod pictures;
mod playground_nodes;
mod privileges;
mod rest;
mod runtime_options;
mod scripts;
mod services;
mod shell;
mod start_order;
mod unread_log;
mod untouched;
