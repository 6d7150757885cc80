//! Tests of the whole. The rules about the repository's text are in `tidy/`; the stories of real processes are in
//! `processes/`, a test target of the package `muster`, because only there cargo builds the two programs first and
//! says where they are.
