//! The configuration in force: what GET and PATCH /config answer and what is stored of it.
