"""The agent's metrics, the alert rules and the dashboard, in a real Prometheus."""
