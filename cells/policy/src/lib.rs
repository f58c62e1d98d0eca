//! Network policy of the endpoints: from rules to rows in their policy maps.
