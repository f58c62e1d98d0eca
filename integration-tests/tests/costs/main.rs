//! Hot paths by counts that are the same on a busy machine: instructions and allocations of what works in memory, system
//! calls of a whole agent. `costs.tsv` has the record.

mod agent;
mod count;
mod loadbalancer;
mod policy;
mod tables;
