//! Collection of connection tracking rows that have ended.
