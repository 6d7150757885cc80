//! A new cluster whose state is changed in a backup: states of earlier builds, or that take years to arise.

use muster_kernel::Clock;
use muster_messages::{Tables, Term};
use muster_store::backup;

use super::World;

const FILE: &str = "backup";

impl World {
    /// Founds a cluster with n1 and kills it: what its backup holds.
    pub fn backup_of_founder(&mut self) -> (Term, Tables) {
        self.node("n1").start(&["--init"]).ready();
        self.muster(&["backup", FILE]).ended(0);
        self.node("n1").kill();
        let (head, tables) =
            backup::decode(&std::fs::read(self.folder().join(FILE)).expect("a backup")).expect("readable");
        (head.term, tables)
    }

    /// A manager m1 that restores these tables and admits nodes.
    pub fn restored_as_m1(&mut self, term: Term, tables: &Tables) {
        let bytes = backup::encode(tables, term, Clock.wall()).expect("it has an encoding");
        let file = self.folder().join(FILE);
        std::fs::write(&file, bytes).expect("the world's folder is writable");
        self.node("m1").start(&["--restore", file.to_str().expect("the folder's path is text")]).ready();
        self.muster_at("m1", &["recovery", "open"]).ended(0);
    }
}
