module github.com/distlock/distlock/backend/kubelock

go 1.23.0

require (
	github.com/distlock/distlock v0.0.0
	go.yaml.in/yaml/v3 v3.0.3
)
