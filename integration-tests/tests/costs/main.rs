//! Hot paths by counts that do not depend on load: instructions and allocations of operations in memory, system
//! calls of a whole agent. `costs.tsv` has the record.

mod agent;
mod count;
mod loadbalancer;
mod policy;
mod tables;
