//! The output of a reconciler's run, from the node that ran it: the manager that is asked finds the run in its replica, and asks that
//! node as it does for actors.

use muster_messages::wire::{ActorsAsk, RunKey, RunLogAsk, RunLogPart};
use muster_messages::{Details, ErrorBody, ErrorCode, RunLogView, RunRecord, Tables, detail};

use crate::actors::ActorRequests;
use crate::reads::to_text;
use crate::work::Work;

/// A request for a part of a run's output.
pub(crate) struct RunLogRequest<'a> {
    pub work: Work<'a>,
    pub reconciler: &'a str,
    /// `None`: the newest run.
    pub number: Option<u64>,
    pub offset: u64,
    pub wait_ms: u64,
}

impl RunLogRequest<'_> {
    pub async fn answer(&self) -> Result<String, ErrorBody> {
        let Work { service, manager, asked } = self.work;
        let replica = self.work.confirmed().await?;
        let tables = &replica.tables;
        let run = muster_gates::run(tables, self.reconciler, self.number).ok_or_else(|| self.no_run(tables))?;
        let RunRecord { reconciler, term, of_term, .. } = run.clone();
        let key = RunKey { reconciler: reconciler.clone(), term, of_term };
        let ask = ActorsAsk::RunLog(RunLogAsk { run: key, offset: self.offset, wait_ms: self.wait_ms });
        let requests = ActorRequests { service, ask: &ask };
        let answer = requests.of_node(manager, run.node, asked.left()).await;
        let answer = answer.map_err(|error| node_unreachable(tables, run, error))?;
        let part: RunLogPart =
            serde_json::from_str(&answer).map_err(|e| ErrorBody::new(ErrorCode::Internal, e.to_string()))?;
        let RunLogPart { kept, offset, skipped, text, next_offset, running } = part;
        if !kept {
            return Err(not_kept(tables, run));
        }
        // A client that asks for the next part until the end would read the same without end.
        if !text.is_empty() && next_offset <= self.offset.max(offset) {
            return Err(without_progress(tables, run, self.offset));
        }
        let next_offset = next_offset.max(self.offset);
        to_text(&RunLogView {
            node: run.node,
            node_name: tables.nodes.get(&run.node).map(|node| node.name.clone()),
            reconciler,
            number: run.number,
            term,
            of_term,
            offset,
            skipped,
            text,
            next_offset,
            running,
        })
    }

    fn no_run(&self, tables: &Tables) -> ErrorBody {
        let name = self.reconciler;
        let Some(of) = muster_gates::runs(tables, name) else { return crate::reconcilers::no_such(name) };
        let text = match (self.number, of.items.last()) {
            (Some(number), Some(last)) => format!(
                "run {number} of {name} is not on record; `muster reconciler runs {name}` lists those that are, {} is the newest",
                last.number
            ),
            _ => format!("no run of {name} is on record; `muster reconciler status {name}` says what it waits for"),
        };
        ErrorBody::new(ErrorCode::NotFound, text)
    }
}

/// The node that ran it.
fn node_name(tables: &Tables, run: &RunRecord) -> String {
    tables.nodes.get(&run.node).map_or_else(|| format!("node {}", run.node), |node| node.name.to_string())
}

fn on_record(tables: &Tables, run: &RunRecord) -> Details {
    Details::default().with(detail::RUN, &muster_gates::run_view(tables, run))
}

/// The node cannot be asked. The details have what is on record of the run.
fn node_unreachable(tables: &Tables, run: &RunRecord, error: ErrorBody) -> ErrorBody {
    if !matches!(error.code, ErrorCode::Unreachable | ErrorCode::TimedOut | ErrorCode::NotFound) {
        return error;
    }
    let RunRecord { number, reconciler, .. } = run;
    let text = format!(
        "the output of run {number} of {reconciler} is on {}, which cannot be reached ({}); its first and last lines are on record",
        node_name(tables, run),
        error.message
    );
    ErrorBody::new(ErrorCode::Unreachable, text).with_details(&on_record(tables, run))
}

/// The node sends output, and that the next part begins where this one does.
fn without_progress(tables: &Tables, run: &RunRecord, offset: u64) -> ErrorBody {
    let RunRecord { number, reconciler, .. } = run;
    let node = node_name(tables, run);
    ErrorBody::new(
        ErrorCode::Conflict,
        format!(
            "{node} sends output of run {number} of {reconciler} that does not lead beyond byte {offset}: it cannot be read further"
        ),
    )
}

/// The node has no log. The details have what is on record of the run.
fn not_kept(tables: &Tables, run: &RunRecord) -> ErrorBody {
    let RunRecord { number, reconciler, .. } = run;
    let text = format!(
        "{} has no log of run {number} of {reconciler}: only commands have logs, older logs are deleted to make room, and none is \
         written while the disk fails (see that node's log); the first and last lines are on record",
        node_name(tables, run)
    );
    ErrorBody::new(ErrorCode::NotFound, text).with_details(&on_record(tables, run))
}

#[cfg(test)]
#[path = "run_logs_tests.rs"]
mod tests;
