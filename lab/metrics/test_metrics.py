"""Alert rules and dashboard against a real Prometheus.

`make test-metrics` sets PROMETHEUS, the directory of its programs, and METRICS, a directory with a sample of what the
agent serves.
"""

import json
import os
import re
import subprocess
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from thermolab.paths import TREE

PROGRAMS = Path(os.environ.get("PROMETHEUS", ""))
METRICS = Path(os.environ.get("METRICS", ""))
RULES = TREE / "deploy" / "prometheus"
WITHIN_SECONDS = 60

pytestmark = pytest.mark.skipif(not (PROGRAMS / "promtool").is_file(), reason="run it by make test-metrics")


def _promtool(*arguments: str) -> str:
    done = subprocess.run([PROGRAMS / "promtool", *arguments], cwd=RULES, text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def _alerts() -> list[str]:
    return re.findall(r"alert: (\w+)", (RULES / "thermocline.rules.yml").read_text())


def test_each_alert_fires_on_its_fault_and_not_without_it() -> None:
    _promtool("check", "rules", "thermocline.rules.yml")
    _promtool("test", "rules", "thermocline.test.yml")
    tests = (RULES / "thermocline.test.yml").read_text()
    counts = {what: sum(f"name: {alert} {what}" in tests for alert in _alerts()) for what in ("fires", "is silent")}
    assert counts["fires"] == counts["is silent"] == len(_alerts())
    result = {"alerts": len(_alerts()), "alerts_fired": counts["fires"], "alerts_silent": counts["is silent"]}
    (METRICS / "result.json").write_text(json.dumps(result) + "\n")


def test_each_alert_has_a_section_in_the_manual() -> None:
    manual = (TREE / "docs" / "alerts.md").read_text()
    assert re.findall(r"^## (\w+)$", manual, re.MULTILINE) == _alerts()


def test_rules_and_dashboard_name_metrics_that_exist() -> None:
    known = set(re.findall(r"thermocline_\w+", (TREE / "docs" / "metrics.md").read_text()))
    known |= set(re.findall(r"thermocline_pool_\w+", (TREE / "docs" / "pool-manager.md").read_text()))
    dashboard = json.loads((TREE / "deploy" / "grafana" / "thermocline.json").read_text())
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    queries += re.findall(r"expr: (.*)", (RULES / "thermocline.rules.yml").read_text())
    for query in queries:
        for name in re.findall(r"thermocline_\w+", query):
            assert name in known, f"{name} in {query}"


def test_a_real_server_keeps_the_labels_and_evaluates_the_rules(tmp_path: Path) -> None:
    with _exporter((METRICS / "sample.prom").read_bytes()) as port, _prometheus(tmp_path, port) as url:
        jobs = _until(lambda: _get(f"{url}/api/v1/query?query={quote('thermocline_job_saved_bytes')}")["result"])
        labels = jobs[0]["metric"]
        assert labels["cgroup"] == "/system.slice/redis.service"
        assert labels["job"] == "thermocline"
        assert not any(name.startswith("exported_") for name in labels)

        def evaluated() -> list[dict[str, Any]]:
            rules: list[dict[str, Any]] = _get(f"{url}/api/v1/rules")["groups"][0]["rules"]
            return rules if all(rule["health"] == "ok" for rule in rules) else []

        assert len(_until(evaluated)) == len(_alerts())
        dashboard = json.loads((TREE / "deploy" / "grafana" / "thermocline.json").read_text())
        for panel in dashboard["panels"]:
            for target in panel["targets"]:
                _get(f"{url}/api/v1/query?query={quote(target['expr'].replace('$instance', '.*'))}")


def _get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=10) as answer:  # noqa: S310 -- the test's own server
        body = json.load(answer)
    assert body["status"] == "success", body
    return body["data"]


def _until(value: Any) -> Any:
    end = time.monotonic() + WITHIN_SECONDS
    while True:
        try:
            found = value()
        except OSError:
            found = None
        if found:
            return found
        assert time.monotonic() < end, "not within the time limit"
        time.sleep(0.5)


@contextmanager
def _exporter(text: bytes) -> Iterator[int]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "application/openmetrics-text; version=1.0.0; charset=utf-8")
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


@contextmanager
def _prometheus(directory: Path, port: int) -> Iterator[str]:
    """Runs a server that scrapes the port each second, with the project's rules."""
    (directory / "prometheus.yml").write_text(
        "global: { scrape_interval: 1s, evaluation_interval: 1s }\n"
        f"rule_files: ['{RULES}/thermocline.rules.yml']\n"
        "scrape_configs:\n  - job_name: thermocline\n"
        f"    static_configs: [{{ targets: ['127.0.0.1:{port}'] }}]\n"
    )
    with ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as free:
        listen = f"127.0.0.1:{free.server_address[1]}"
    argv = [str(PROGRAMS / "prometheus"), "--config.file=prometheus.yml", "--storage.tsdb.path=data"]
    with subprocess.Popen(
        [*argv, f"--web.listen-address={listen}"],
        cwd=directory,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as server:
        try:
            yield f"http://{listen}"
        finally:
            server.kill()
