//! muster-raft-member
