{{- define "thermocline.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 63 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 63 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 63 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "thermocline.selector" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "thermocline.labels" -}}
{{ include "thermocline.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "thermocline.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "thermocline.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "thermocline.image" -}}
{{- if .Values.image.digest -}}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest -}}
{{- else -}}
{{- printf "%s:%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) -}}
{{- end -}}
{{- end -}}

{{- /* The agent's configuration. JSON of a string, number, Boolean or list of strings is TOML, too. */ -}}
{{- define "thermocline.toml" -}}
# Written by Helm. Rules of pods are in /run/thermocline-pods/rules.toml, and are tried before those below.
agent.runtime_dir = {{ .Values.runtimeDir | toJson }}
agent.state_dir = {{ .Values.stateDir | toJson }}
{{- range $key, $value := .Values.settings }}
{{ $key }} = {{ $value | toJson }}
{{- end }}
{{- range .Values.rules }}

[[job]]
{{- range $key, $value := . }}
{{ $key }} = {{ $value | toJson }}
{{- end }}
{{- end }}
{{- end -}}
